"""Going on from an exported head."""

import pytest
import torch
from safetensors.torch import save_file

from replicas.errors import CheckpointError
from replicas.training.draft_vocab_choice import DraftVocab
from replicas.training.export import export_config, export_tensors, write_head
from replicas.training.start_head import draft_vocab_of, start_from
from tests.replicas.training import tiny


def test_the_head_is_the_exported_one_whatever_scale_it_is_trained_at(tmp_path):
    vocab, trained, fresh = tiny.some_vocab(16), tiny.random_head(16), tiny.random_head(16, seed=1)
    write_head(tmp_path, export_tensors(trained, vocab), export_config(tiny.hf_config(), vocab, (2, 3, 3)), {})
    scale = fresh.tap_scale.clone()
    start_from(fresh, tmp_path, vocab)
    assert fresh.tap_scale.equal(scale)
    assert not scale.equal(trained.tap_scale)
    again = export_tensors(fresh, vocab)
    for name, value in export_tensors(trained, vocab).items():
        torch.testing.assert_close(again[name], value, rtol=1e-3, atol=1e-6)


def test_a_heads_own_draft_vocabulary(tmp_path):
    vocab = DraftVocab(torch.tensor([2, 3, 5, 11, 13]), tiny.VOCAB)
    write_head(
        tmp_path, export_tensors(tiny.random_head(5), vocab), export_config(tiny.hf_config(), vocab, (2, 3, 3)), {}
    )
    found = draft_vocab_of(tmp_path, tiny.VOCAB)
    assert found.target_ids.tolist() == [2, 3, 5, 11, 13]
    assert found.vocab_size == tiny.VOCAB


def test_rows_follow_their_tokens_and_new_ones_the_map_of_the_others(tmp_path):
    old, new = DraftVocab(torch.arange(0, 30), tiny.VOCAB), DraftVocab(torch.arange(4, 34), tiny.VOCAB)
    trained, fresh = tiny.random_head(30), tiny.random_head(30, seed=1)
    target_rows, turn = tiny.embedding(), torch.randn(tiny.HIDDEN, tiny.HIDDEN) / 5
    with torch.no_grad():
        trained.lm_head.weight.copy_(target_rows[old.target_ids] @ turn)
        fresh.lm_head.weight.copy_(target_rows[new.target_ids])
    write_head(tmp_path, export_tensors(trained, old), export_config(tiny.hf_config(), old, (2, 3, 3)), {})
    start_from(fresh, tmp_path, new)
    # Tokens 30 to 33 are new: the map from the target's rows to the trained ones is linear here, so theirs are known.
    torch.testing.assert_close(fresh.lm_head.weight, target_rows[new.target_ids] @ turn, atol=1e-2, rtol=1e-2)


def test_a_head_without_a_draft_vocabulary_is_refused(tmp_path):
    save_file({"fc.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="has no tensor 'd2t'"):
        start_from(tiny.random_head(16), tmp_path, tiny.some_vocab(16))
