"""Distilling the target's first layers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from replicas.training.distill import DistillOptions, agreement, batches, train, truncated
from tests.reference.decoding import layer_inputs
from tests.reference.sentences import checkpoint_error
from tests.reference.tiny_checkpoints import HIDDEN, VOCAB

MARKER = [190, 191]


def write_shard(path: Path, model: LlamaForCausalLM, seed: int, count: int = 6) -> None:
    """Conversations of random tokens whose answers begin at token 7, with the model's own last states."""
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(0, 60, (20 + 3 * i,), generator=generator) for i in range(count)]
    for text in texts:
        text[5:7] = torch.tensor(MARKER)
    with torch.no_grad():
        states = [model.model(text[None]).last_hidden_state[0] for text in texts]
    fused = [torch.cat([torch.full((len(s), 3 * HIDDEN), 7.0), s], 1).half() for s in states]
    save_file(
        {
            "tokens": torch.cat(texts).int(),
            "lengths": torch.tensor([len(text) for text in texts], dtype=torch.int32),
            "states": torch.cat(fused),
        },
        path,
    )


@pytest.fixture
def shards(tmp_path: Path, tiny_reference: LlamaForCausalLM) -> list[Path]:
    paths = [tmp_path / f"shard-{index:05}.safetensors" for index in range(2)]
    for index, path in enumerate(paths):
        write_shard(path, tiny_reference, index)
    return paths


def test_a_batch_labels_the_answers_positions_that_the_target_ran(
    shards: list[Path], tiny_reference: LlamaForCausalLM
) -> None:
    found = list(batches(shards, MARKER, HIDDEN, 4))
    assert len(found) == 2, "a rest of two conversations makes no batch"
    batch = found[0]
    assert batch.tokens.shape == (4, 29)
    assert batch.labelled.sum(1).tolist() == [13, 16, 19, 22]
    assert batch.labelled[0].nonzero()[:, 0].tolist() == list(range(6, 19))
    with torch.no_grad():
        states = tiny_reference.model(batch.tokens).last_hidden_state[batch.labelled]
    torch.testing.assert_close(batch.states, states, atol=5e-3, rtol=5e-3)


def test_the_first_layers_are_the_target_s(tiny_folder: Path, tiny_reference: LlamaForCausalLM) -> None:
    model = truncated(tiny_folder, 2)
    boundaries = layer_inputs(tiny_reference, range(30))
    with torch.no_grad():
        states = model.model(torch.arange(30)[None]).last_hidden_state[0]
        torch.testing.assert_close(states, tiny_reference.model.norm(boundaries[2]))
    assert model.config.num_hidden_layers == 2
    assert checkpoint_error(lambda: truncated(tiny_folder, 4)) == (
        "--layers is 4; the target has 4, so 1 to 3 are allowed"
    )


def test_training_brings_the_small_model_closer_and_leaves_the_embedding(
    tiny_folder: Path, tiny_reference: LlamaForCausalLM, shards: list[Path]
) -> None:
    model = truncated(tiny_folder, 3)
    options = DistillOptions(
        layers=3, steps=60, conversations=3, label_rows=40, learning_rate=3e-3, product_dtype="float32"
    )
    before = agreement(model, batches(shards, MARKER, HIDDEN, 3))
    losses = train(model, shards, MARKER, options)
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert agreement(model, batches(shards, MARKER, HIDDEN, 3)) > before + 0.2
    assert torch.equal(model.get_input_embeddings().weight, tiny_reference.model.embed_tokens.weight)
    assert model.get_output_embeddings().weight.shape == (VOCAB, HIDDEN)
