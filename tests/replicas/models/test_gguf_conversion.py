"""GGUF files as models: each weight and the text survive, each fault is one sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from replicas.models import source
from replicas.models.source import resolve_model
from tests.reference.gguf_files import CHAT_TEMPLATE, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, write_gguf
from tests.reference.sentences import unresolved


@pytest.mark.parametrize("tied", [True, False])
def test_conversion_keeps_every_weight_and_the_text(tied: bool, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "tiny.Q4.gguf"
    expected = write_gguf(path, tied=tied)

    folder = resolve_model(str(path))

    assert folder.parent == cache
    assert folder.name.startswith("tiny.Q4-")
    state = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.float16}
    assert ("lm_head.weight" in state) is not tied
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
        "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
        "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    } | ({} if tied else {"lm_head.weight": "output.weight"})
    for name, gguf_name in names.items():
        np.testing.assert_array_equal(state[name].float().numpy(), expected[gguf_name], err_msg=name)
    # GGUF interleaves the two halves of each head that the rotary embedding pairs.
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        interleaved = expected[f"blk.0.attn_{name}.weight"].reshape(heads, HEAD_DIM // 2, 2, HIDDEN)
        halves = interleaved.swapaxes(1, 2).reshape(heads * HEAD_DIM, HIDDEN)
        np.testing.assert_array_equal(state[f"model.layers.0.self_attn.{name}_proj.weight"].float().numpy(), halves)
    assert len(state) == len(names) + 2

    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float16"
    assert config["eos_token_id"] == 2
    assert config["tie_word_embeddings"] is tied
    assert (config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]) == (16, 4, 2)

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("hello<|im_end|>") == [261, 3 + ord("o"), 2]
    assert tokenizer.decode(tokenizer.encode("héllo 🦅 鷹")) == "héllo 🦅 鷹"
    assert tokenizer.chat_template == CHAT_TEMPLATE


def test_it_is_converted_once_and_again_when_the_file_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"one")
    filled: list[bytes] = []

    def convert(source: Path, folder: Path, _: object) -> None:
        filled.append(source.read_bytes())
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(source, "convert", convert)
    first = resolve_model(str(path))
    assert resolve_model(str(path)) == first
    path.write_bytes(b"three")
    second = resolve_model(str(path))
    other = tmp_path / "other" / "tiny.gguf"
    other.parent.mkdir()
    other.write_bytes(b"three")
    third = resolve_model(str(other))
    assert len({first, second, third}) == 3
    assert filled == [b"one", b"three", b"three"]


def test_missing(tmp_path: Path, cache: Path) -> None:
    assert f"{tmp_path / 'no.gguf'} does not exist" in unresolved(str(tmp_path / "no.gguf"))


def test_no_gguf_inside(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "zip.gguf"
    path.write_bytes(b"PK\x03\x04 and more")
    message = unresolved(str(path))
    assert str(path) in message
    assert "no GGUF file" in message
    assert not [entry for entry in cache.iterdir() if entry.is_dir()]


@pytest.mark.parametrize("part", [0.001, 0.01, 0.3, 0.9, 0.999])
def test_truncated(part: float, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "cut.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(4, int(len(whole) * part))])
    message = unresolved(str(path))
    assert f"{path} is a truncated or damaged GGUF file" in message
    assert not [entry for entry in cache.iterdir() if entry.is_dir()]


def test_an_architecture_that_cannot_be_read_is_named(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "odd.gguf"
    write_gguf(path, architecture="nosucharch")
    message = unresolved(str(path))
    assert str(path) in message
    assert "nosucharch" in message
