"""The Llama target against transformers' on tiny random checkpoints."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from replicas.devices.cpu import CpuBackend
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import TargetModel, load_target, target_config
from tests.reference.decoding import full_logits, layer_inputs
from tests.reference.tiny_checkpoints import LAYERS, VOCAB, write_target

BLOCK_SIZE = 4
MAX_LENGTH = 96
PROMPT = torch.randint(0, VOCAB, (41,), generator=torch.Generator().manual_seed(5)).tolist()

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "attention bias": {"attention_bias": True},
    "mlp bias": {"mlp_bias": True},
    "heads wider than hidden": {"head_dim": 32},
    "heads narrower than hidden": {"head_dim": 8},
    "one kv head": {"num_key_value_heads": 1},
    "no grouping": {"num_key_value_heads": 4},
    "other theta and epsilon": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rms_norm_eps": 1e-3,
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
}


def load(folder: Path, backend: CpuBackend | None = None, taps: tuple[int, ...] = ()) -> TargetModel:
    backend = backend or CpuBackend("float32", num_threads=1)
    model = load_target(folder, target_config(folder), backend, MAX_LENGTH)
    model.tap(taps)
    return model


def run(model: TargetModel, chunks: list[list[int]]) -> tuple[Tensor, Tensor | None]:
    """Logits [tokens, vocab] and taps of one sequence, run chunk by chunk over scattered blocks."""
    config = model.config
    blocks = MAX_LENGTH // BLOCK_SIZE
    cache = PagedCache(config.num_layers, 2 * blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    order = torch.randperm(2 * blocks - 1, generator=torch.Generator().manual_seed(1)) + 1
    table = order[:blocks].int()[None]
    start, logits, taps = 0, list[Tensor](), list[Tensor]()
    with torch.inference_mode():
        for chunk in chunks:
            positions = torch.arange(start, start + len(chunk), dtype=torch.int32)[None]
            attention = model.rotary.attention_inputs(positions, table, BLOCK_SIZE)
            hidden, tapped = model.forward(torch.tensor([chunk], dtype=torch.int32), attention, cache)
            logits.append(model.logits(hidden))
            taps += [] if tapped is None else [tapped]
            start += len(chunk)
    return torch.cat(logits), torch.cat(taps) if taps else None


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_taps_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = write_target(tmp_path, seed=1, **VARIANTS[name])
    logits, taps = run(load(tmp_path, taps=tuple(range(LAYERS + 1))), [PROMPT])
    expected = full_logits(reference, PROMPT)
    assert expected.std() > 0.5, "the reference tells tokens apart"
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-4)
    assert taps is not None
    for layer, (ours, theirs) in enumerate(
        zip(taps.chunk(LAYERS + 1, -1), layer_inputs(reference, PROMPT), strict=True)
    ):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=2e-4, msg=lambda text, layer=layer: f"tap {layer}: {text}"
        )


@pytest.mark.parametrize("cuts", [(1, 2, 3), (16, 32), (40,), tuple(range(1, 41))])
def test_a_prompt_in_chunks_gives_the_same_as_whole(cuts: tuple[int, ...], tiny_folder: Path) -> None:
    model = load(tiny_folder, taps=(0, 2, 4))
    edges = [0, *cuts, len(PROMPT)]
    chunks = [PROMPT[begin:end] for begin, end in itertools.pairwise(edges)]
    whole, in_chunks = run(model, [PROMPT]), run(model, chunks)
    torch.testing.assert_close(in_chunks[0], whole[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(in_chunks[1], whole[1], rtol=1e-4, atol=1e-4)


def test_taps_come_in_the_order_asked_for(tiny_folder: Path) -> None:
    _, all_taps = run(load(tiny_folder, taps=tuple(range(LAYERS + 1))), [PROMPT])
    _, some = run(load(tiny_folder, taps=(3, 0, 3)), [PROMPT])
    assert all_taps is not None
    layers = all_taps.chunk(LAYERS + 1, -1)
    assert some is not None
    assert torch.equal(some, torch.cat([layers[3], layers[0], layers[3]], -1))
    assert run(load(tiny_folder), [PROMPT])[1] is None


def test_sequences_of_a_batch_do_not_see_each_other(tiny_folder: Path, tiny_reference: LlamaForCausalLM) -> None:
    model = load(tiny_folder)
    config = model.config
    cache = PagedCache(config.num_layers, 20, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    prompts = [PROMPT[:9], PROMPT[20:25], PROMPT[30:38]]
    token_ids, positions = torch.zeros(3, 9, dtype=torch.int32), torch.full((3, 9), -1, dtype=torch.int32)
    for row, prompt in enumerate(prompts):
        token_ids[row, : len(prompt)] = torch.tensor(prompt)
        positions[row, : len(prompt)] = torch.arange(len(prompt))
    tables = torch.tensor([[3, 9, 1], [2, 7, 0], [11, 4, 0]], dtype=torch.int32)
    with torch.inference_mode():
        attention = model.rotary.attention_inputs(positions, tables, BLOCK_SIZE)
        logits = model.logits(model.forward(token_ids, attention, cache)[0]).view(3, 9, -1)
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(
            logits[row, : len(prompt)], full_logits(tiny_reference, prompt), rtol=1e-4, atol=2e-4
        )


def test_packed_fp16_weights_are_close(tmp_path: Path) -> None:
    reference = write_target(tmp_path, seed=1, attention_bias=True)
    logits, _ = run(load(tmp_path, CpuBackend("float16", num_threads=1)), [PROMPT])
    expected = full_logits(reference, PROMPT)
    error = (logits - expected).abs().max()
    assert 1e-6 < error < 0.02 * expected.std(), "rounded to fp16, and no worse"


def test_packed_fp16_loses_nothing_of_an_fp16_checkpoint(tmp_path: Path) -> None:
    write_target(tmp_path, seed=1).half().save_pretrained(tmp_path)
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    logits, _ = run(load(tmp_path, CpuBackend("float16", num_threads=1)), [PROMPT])
    torch.testing.assert_close(logits, full_logits(reference, PROMPT), rtol=1e-4, atol=2e-4)
