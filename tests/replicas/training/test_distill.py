"""Distilling the target's first layers."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from replicas.training.distill import FirstLayers
from replicas.training.distillation import DistillOptions, agreement, train
from replicas.training.padded_batches import held_out_and_training, padded_batches
from tests.reference.decoding import layer_inputs
from tests.reference.sentences import checkpoint_error
from tests.reference.tiny_checkpoints import HIDDEN
from tests.replicas.training.tiny_shards import MARKER, write_shard


@pytest.fixture
def shards(tmp_path: Path, tiny_reference: LlamaForCausalLM) -> list[Path]:
    return [write_shard(tmp_path, index, tiny_reference) for index in range(2)]


def test_a_batch_labels_the_answers_positions_that_the_target_ran(
    shards: list[Path], tiny_reference: LlamaForCausalLM
) -> None:
    found = list(padded_batches(shards, MARKER, HIDDEN, 4))
    assert len(found) == 2, "a rest of two conversations makes no batch"
    batch = found[0]
    assert batch.tokens.shape == (4, 29)
    assert batch.labelled.sum(1).tolist() == [13, 16, 19, 22]
    assert batch.labelled[0].nonzero()[:, 0].tolist() == list(range(6, 19))
    with torch.no_grad():
        states = tiny_reference.model(batch.tokens).last_hidden_state
    torch.testing.assert_close(batch.states[batch.labelled], states[batch.labelled], atol=5e-3, rtol=5e-3)
    assert not batch.states[0, 20:].any()


def test_shards_are_held_out(shards: list[Path], tmp_path: Path) -> None:
    assert held_out_and_training(tmp_path, 1) == (shards[:1], shards[1:])
    assert checkpoint_error(lambda: held_out_and_training(tmp_path, 2)) == (
        f"{tmp_path} holds 2 files shard-*.safetensors, of which 2 are held out; at least one more is needed "
        "(replicas.training.generate writes them)"
    )


def test_the_first_layers_are_the_target_s(tiny_folder: Path, tiny_reference: LlamaForCausalLM) -> None:
    module = FirstLayers(tiny_folder, 2)
    boundaries = layer_inputs(tiny_reference, range(30))
    with torch.no_grad():
        states = module.model.model(torch.arange(30)[None]).last_hidden_state[0]
        torch.testing.assert_close(states, tiny_reference.model.norm(boundaries[2]))
    assert module.model.config.num_hidden_layers == 2
    assert checkpoint_error(lambda: FirstLayers(tiny_folder, 4)) == (
        "--layers is 4; the target has 4, so 1 to 3 are allowed"
    )


def test_training_brings_the_small_model_closer_and_leaves_the_embedding(
    tiny_folder: Path, tiny_reference: LlamaForCausalLM, shards: list[Path]
) -> None:
    module = FirstLayers(tiny_folder, 3)
    options = DistillOptions(steps=60, conversations=3, label_rows=40, learning_rate=3e-3, product_dtype="float32")
    (before,) = agreement(module, padded_batches(shards, MARKER, HIDDEN, 3))
    losses = train(module, shards, MARKER, HIDDEN, options)
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    (after,) = agreement(module, padded_batches(shards, MARKER, HIDDEN, 3))
    assert after > before + 0.2
    assert torch.equal(module.model.model.embed_tokens.weight, tiny_reference.model.embed_tokens.weight)
    assert torch.equal(module.head.weight, tiny_reference.lm_head.weight)  # pyright: ignore[reportArgumentType]
