"""What a target's folder may get wrong, and the sentences that say so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from replicas.devices.cpu import CpuBackend
from replicas.errors import CheckpointError
from replicas.models.registry import TARGETS, load_target, target_config
from tests.reference.tiny_checkpoints import END, write_target


def edit_config(folder: Path, **changes: Any) -> None:
    """Set fields of config.json; None removes one."""
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not None}))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"format": "pt"})


def load(folder: Path) -> None:
    load_target(folder, target_config(folder), CpuBackend("float32", num_threads=1), 64)


def test_the_shape_is_read_from_config_json(tiny_folder: Path) -> None:
    shape = target_config(tiny_folder)
    assert (shape.architecture, shape.vocab_size, shape.hidden_size, shape.intermediate_size) == (
        "LlamaForCausalLM",
        200,
        64,
        96,
    )
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.query_group) == (
        4,
        4,
        2,
        16,
        2,
    )
    assert shape.eos_token_ids == (END,)
    assert shape.default_tapped_layers == (2, 2, 1)
    assert not shape.tie_word_embeddings


@pytest.mark.parametrize(("eos", "expected"), [(7, (7,)), ([7, 9], (7, 9)), (None, ())])
def test_end_tokens_are_one_several_or_none(tmp_path: Path, eos: Any, expected: tuple[int, ...]) -> None:
    write_target(tmp_path, eos_token_id=eos)
    assert target_config(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.2.self_attn.k_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.3.mlp.down_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    write_target(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError) as error:
        load(tmp_path)
    assert str(error.value) == f"{tmp_path} has no tensor '{name}'"


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.k_proj.bias", "model.layers.1.mlp.up_proj.bias"])
def test_a_missing_bias_is_named(tmp_path: Path, name: str) -> None:
    write_target(tmp_path, attention_bias=True, mlp_bias=True)
    edit_tensors(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError) as error:
        load(tmp_path)
    assert str(error.value) == f"{tmp_path} has no tensor '{name}'"


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    write_target(tmp_path)
    name = "model.layers.1.self_attn.k_proj.weight"
    edit_tensors(tmp_path, lambda tensors: tensors.update({name: torch.zeros(16, 64)}))
    with pytest.raises(CheckpointError) as error:
        load(tmp_path)
    assert str(error.value) == f"{tmp_path}: tensor '{name}' has shape (16, 64), config.json asks for (32, 64)"


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    write_target(tmp_path)
    edit_config(tmp_path, architectures=["MambaForCausalLM"])
    with pytest.raises(CheckpointError) as error:
        target_config(tmp_path)
    sentence = f"{tmp_path}/config.json: architecture 'MambaForCausalLM' is not supported; supported: "
    assert str(error.value) == sentence + ", ".join(sorted(TARGETS))


def test_no_architecture_is_refused(tmp_path: Path) -> None:
    write_target(tmp_path)
    edit_config(tmp_path, architectures=None)
    with pytest.raises(CheckpointError, match=r"config\.json of a 'llama' model names no 'architectures'"):
        target_config(tmp_path)


def test_an_unknown_rope_type_is_refused(tmp_path: Path) -> None:
    write_target(tmp_path)
    edit_config(tmp_path, rope_parameters={"rope_type": "spiral", "rope_theta": 10000.0})
    with pytest.raises(CheckpointError, match=r"config\.json.*rope_type.*'spiral'.*'yarn'"):
        target_config(tmp_path)


def test_rope_must_turn_whole_heads(tmp_path: Path) -> None:
    write_target(tmp_path)
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0, "partial_rotary_factor": 0.5}
    edit_config(tmp_path, rope_parameters=rope)
    with pytest.raises(CheckpointError, match=r"RoPE turns 8 of the 16 .*partial_rotary_factor 0\.5"):
        target_config(tmp_path)


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_parameters": DYNAMIC, "max_position_embeddings": 64},
        {"rope_parameters": LONGROPE, "max_position_embeddings": 256},
        {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
    ],
    ids=["dynamic", "longrope", "sliding window"],
)
def test_what_changes_with_length_is_refused_beyond_it(fields: dict[str, Any], tmp_path: Path) -> None:
    write_target(tmp_path, **fields)
    config, backend = target_config(tmp_path), CpuBackend("float32", num_threads=1)
    load_target(tmp_path, config, backend, 64)
    with pytest.raises(CheckpointError) as error:
        load_target(tmp_path, config, backend, 65)
    assert str(error.value) == (
        "max_model_len is 65, but the RoPE scaling or sliding window in config.json of a "
        f"{config.architecture} is only supported up to 64 tokens"
    )


def test_another_activation_is_refused(tmp_path: Path) -> None:
    write_target(tmp_path)
    edit_config(tmp_path, hidden_act="gelu")
    with pytest.raises(CheckpointError, match=r"config\.json: hidden_act is 'gelu'; only 'silu' is supported"):
        target_config(tmp_path)


def test_heads_must_share_kv_heads_evenly(tmp_path: Path) -> None:
    write_target(tmp_path)
    edit_config(tmp_path, num_key_value_heads=3)
    with pytest.raises(
        CheckpointError, match=r"config\.json: num_attention_heads 4 is no multiple of num_key_value_heads 3"
    ):
        target_config(tmp_path)
