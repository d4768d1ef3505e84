"""The Qwen3 target against transformers' on tiny random checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from replicas.devices.cpu import CpuBackend
from replicas.errors import CheckpointError
from replicas.models.registry import target_config
from tests.reference.target_runs import QWEN_YARN, assert_like_transformers, load
from tests.reference.tiny_checkpoints import write_target

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads wider than hidden": {"head_dim": 32},
    "heads narrower than hidden": {"head_dim": 8},
    "attention bias": {"attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "no grouping, other epsilon": {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
    "yarn": QWEN_YARN,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_taps_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = write_target(tmp_path, seed=1, model_type="qwen3", **VARIANTS[name])
    assert target_config(tmp_path).architecture == "Qwen3ForCausalLM"
    assert_like_transformers(tmp_path, reference)


def test_padding_leaves_the_norm_of_heads_alone(tmp_path: Path) -> None:
    """An epsilon of 0.01 and padding to 1.5 times the width: scaling the wrong norm would show."""
    reference = write_target(tmp_path, seed=1, model_type="qwen3", rms_norm_eps=1e-2)
    backend = CpuBackend("float32", num_threads=1, hidden_multiple=96, vocab_multiple=128)
    assert_like_transformers(tmp_path, reference, backend)


@pytest.mark.parametrize("name", ["q_norm", "k_norm"])
def test_a_missing_norm_is_named(name: str, tmp_path: Path) -> None:
    write_target(tmp_path, model_type="qwen3")
    tensors = load_file(tmp_path / "model.safetensors")
    full = f"model.layers.2.self_attn.{name}.weight"
    tensors[full] = torch.ones(3)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"'{full}' has shape \(3,\), config.json asks for \(16,\)"):
        load(tmp_path)
    del tensors[full]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"has no tensor '{full}'"):
        load(tmp_path)
