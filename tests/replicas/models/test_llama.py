"""The Llama target against transformers' on tiny random checkpoints."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from replicas.devices.cpu import CpuBackend
from replicas.kv_cache.paged_cache import PagedCache
from tests.reference.decoding import full_logits
from tests.reference.target_runs import BLOCK_SIZE, PROMPT, assert_like_transformers, load, run
from tests.reference.tiny_checkpoints import LAYERS, write_target

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
    "dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        "max_position_embeddings": 96,
    },
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 96,
            "short_factor": [1.0 + 0.1 * index for index in range(8)],
            "long_factor": [4.0] * 8,
        },
    },
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
    "yarn with its own attention factor": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 0.7,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        }
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_taps_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert_like_transformers(tmp_path, write_target(tmp_path, seed=1, **VARIANTS[name]))


LEGACY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "theta": ({"rope_theta": 500000.0}, {"rope_type": "default", "rope_theta": 500000.0}),
    "linear": (
        {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
    "llama3": (
        {"rope_theta": 10000.0, "rope_scaling": VARIANTS["llama3"]["rope_parameters"]},
        VARIANTS["llama3"]["rope_parameters"],
    ),
}


@pytest.mark.parametrize("name", LEGACY)
def test_configs_written_before_transformers_5_mean_the_same(name: str, tmp_path: Path) -> None:
    old, new = LEGACY[name]
    reference = write_target(tmp_path, seed=1, rope_parameters=new)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    del fields["rope_parameters"]
    path.write_text(json.dumps(fields | old))
    assert_like_transformers(tmp_path, reference)


@pytest.mark.parametrize("multiples", [{"hidden_multiple": 48}, {"vocab_multiple": 64}], ids=["hidden", "vocabulary"])
@pytest.mark.parametrize("name", ["attention bias", "tied", "other theta and epsilon"])
def test_padding_gives_the_unpadded_result(name: str, multiples: dict[str, int], tmp_path: Path) -> None:
    """64 wide becomes 96 wide, 200 tokens become 256 rows; random weights hide no fault of either."""
    reference = write_target(tmp_path, seed=1, **VARIANTS[name])
    hidden, vocab = multiples.get("hidden_multiple", 1), multiples.get("vocab_multiple", 1)
    backend = CpuBackend("float32", num_threads=1, hidden_multiple=hidden, vocab_multiple=vocab)
    assert_like_transformers(tmp_path, reference, backend)
    embedding = load(tmp_path, backend).embedding
    assert embedding.shape == ((200, 96) if "hidden_multiple" in multiples else (256, 64))


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
        attention = model.rotary.attention_inputs(positions, tables, cache)
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
