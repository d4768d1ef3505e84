"""Sources of models: folders, the hub, GGUF files and PyPI packages; each fault is one sentence."""

import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from replicas.errors import CheckpointError
from replicas.models import source
from replicas.models.source import converted, read_hf_config, resolve_model
from tests.reference.sentences import checkpoint_error

VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 262, 16, 24, 4, 2, 4
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"

Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]
WriteGguf = Callable[..., Weights]


def byte_tokens() -> list[str]:
    """One token a byte, spelt as byte-level BPE does."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    spelling = {byte: chr(byte) for byte in shown} | {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    return [spelling[byte] for byte in range(256)]


def write_gguf(path: Path, *, tied: bool = True, architecture: str = "llama", seed: int = 0) -> Weights:
    """A Llama of one layer with a byte-level tokenizer; returns its tensors by their GGUF names."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        # Multiples of 1/8 lose nothing in float16.
        return (random.integers(-8, 8, shape) / 8).astype(np.float32)

    weights = {
        "token_embd.weight": matrix(VOCAB, HIDDEN),
        "output_norm.weight": matrix(HIDDEN),
        "blk.0.attn_norm.weight": matrix(HIDDEN),
        "blk.0.attn_q.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": matrix(HIDDEN),
        "blk.0.ffn_gate.weight": matrix(FFN, HIDDEN),
        "blk.0.ffn_up.weight": matrix(FFN, HIDDEN),
        "blk.0.ffn_down.weight": matrix(HIDDEN, FFN),
    }
    if not tied:
        weights["output.weight"] = matrix(VOCAB, HIDDEN)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer.add_token_list([*specials, *byte_tokens(), "he", "ll", "hell"])
    writer.add_token_types([3] * 3 + [1] * (VOCAB - 3))
    writer.add_token_merges(["h e", "l l", "he ll"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("EYRIE_CACHE", str(folder))
    return folder


def fails(model: str) -> str:
    """The one sentence that resolving `model` ends with."""
    return checkpoint_error(lambda: resolve_model(model))


class TestFolder:
    def test_it_is_returned_as_given(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        assert resolve_model(str(tmp_path)) == tmp_path

    def test_without_config_json(self, tmp_path: Path) -> None:
        message = fails(str(tmp_path))
        assert str(tmp_path) in message
        assert "config.json" in message

    def test_a_file_is_no_model(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        path.write_bytes(b"")
        assert str(path) in fails(str(path))

    @pytest.mark.parametrize("unknown", ["smollm2", "a/b/c", "/no/such/folder", "./org/name"])
    def test_an_unknown_source_names_the_choices(
        self, unknown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        message = fails(unknown)
        assert repr(unknown) in message
        assert "pypi:PACKAGE" in message


class TestHub:
    @pytest.fixture
    def hub_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        return tmp_path

    def test_a_cached_snapshot_is_found(self, hub_cache: Path) -> None:
        commit = "0123456789" * 4
        root = hub_cache / "models--org--tiny-1.5"
        snapshot = root / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(commit)
        (snapshot / "config.json").write_text("{}")
        assert resolve_model("org/tiny-1.5") == snapshot

        (snapshot / "config.json").unlink()
        assert "'org/tiny-1.5' has no config.json" in fails("org/tiny-1.5")

    def test_not_to_be_had(self, hub_cache: Path) -> None:
        message = fails("org/absent")
        assert "'org/absent' is neither a local folder nor to be had from the hub" in message


class TestGguf:
    @pytest.mark.parametrize("tied", [True, False])
    def test_conversion_keeps_every_weight_and_the_text(self, tied: bool, tmp_path: Path, cache: Path) -> None:
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
        self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
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

    def test_missing(self, tmp_path: Path, cache: Path) -> None:
        assert f"{tmp_path / 'no.gguf'} does not exist" in fails(str(tmp_path / "no.gguf"))

    def test_no_gguf_inside(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "zip.gguf"
        path.write_bytes(b"PK\x03\x04 and more")
        message = fails(str(path))
        assert str(path) in message
        assert "no GGUF file" in message
        assert not [entry for entry in cache.iterdir() if entry.is_dir()]

    @pytest.mark.parametrize("part", [0.001, 0.01, 0.3, 0.9, 0.999])
    def test_truncated(self, part: float, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "cut.gguf"
        write_gguf(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: max(4, int(len(whole) * part))])
        message = fails(str(path))
        assert f"{path} is a truncated or damaged GGUF file" in message
        assert not [entry for entry in cache.iterdir() if entry.is_dir()]

    def test_an_architecture_that_cannot_be_read_is_named(self, tmp_path: Path, cache: Path) -> None:
        path = tmp_path / "odd.gguf"
        write_gguf(path, architecture="nosucharch")
        message = fails(str(path))
        assert str(path) in message
        assert "nosucharch" in message


class TestCache:
    def test_many_at_once_write_once(self, cache: Path) -> None:
        start = threading.Barrier(4)
        fills: list[Path] = []
        folders: list[Path] = []

        def fill(folder: Path, _: object) -> None:
            fills.append(folder)
            (folder / "config.json").write_text("{}")

        def resolve() -> None:
            start.wait()
            folders.append(converted("name", fill))

        threads = [threading.Thread(target=resolve) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(fills) == 1
        assert set(folders) == {cache / "name-v1"}
        assert len(folders) == 4
        assert fills[0] != folders[0]

    def test_what_a_killed_process_left_is_replaced(self, cache: Path) -> None:
        left = cache / "name-v1.partial"
        left.mkdir(parents=True)
        (left / "model.safetensors").write_text("half")
        folder = converted("name", lambda folder, _: (folder / "config.json").touch())
        assert sorted(path.name for path in folder.iterdir()) == ["config.json"]
        assert not left.exists()

    def test_a_failure_leaves_nothing_and_is_tried_again(self, cache: Path) -> None:
        def fail(folder: Path, _: object) -> None:
            (folder / "half").write_text("")
            raise CheckpointError("no")

        with pytest.raises(CheckpointError, match=r"^no$"):
            converted("name", fail)
        assert [path.name for path in cache.iterdir() if path.is_dir()] == []
        assert converted("name", lambda folder, _: (folder / "whole").touch()).joinpath("whole").exists()

    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("EYRIE_CACHE", str(tmp_path / "file" / "cache"))
        with pytest.raises(CheckpointError, match="EYRIE_CACHE") as caught:
            converted("name", lambda folder, _: None)
        assert str(tmp_path / "file") in str(caught.value)


class TestPackage:
    @pytest.fixture
    def convert(self, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        """Stands for the conversion: keeps what it was given."""
        given: list[bytes] = []

        def keep(source: Path, folder: Path, _: object) -> None:
            given.append(source.read_bytes())
            (folder / "config.json").write_text("{}")

        monkeypatch.setattr(source, "convert", keep)
        return given

    @staticmethod
    def install(site: Path, files: list[str]) -> None:
        info = site / "eyrie_tiny_model-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: eyrie-tiny-model\nVersion: 1.0\n")
        (info / "RECORD").write_text("".join(f"eyrie_tiny_model/{file},,\n" for file in files))
        (site / "eyrie_tiny_model").mkdir()
        for file in files:
            (site / "eyrie_tiny_model" / file).write_text(file)

    def test_an_installed_one_is_used(
        self, tmp_path: Path, cache: Path, convert: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.install(tmp_path, ["a.gguf", "a.py"])
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(source, "download_wheel", lambda *_: pytest.fail("downloaded"))
        assert resolve_model("pypi:Eyrie_tiny.model").name.startswith("a-")
        assert convert == [b"a.gguf"]

    @pytest.mark.parametrize(("files", "held"), [(["a.py"], "none"), (["b.gguf", "a.gguf"], "a.gguf, b.gguf")])
    def test_it_must_hold_one_gguf(
        self, files: list[str], held: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.install(tmp_path, files)
        monkeypatch.syspath_prepend(tmp_path)
        message = fails("pypi:eyrie-tiny-model")
        assert "'eyrie-tiny-model' must hold exactly one .gguf file" in message
        assert message.endswith(held)

    def test_another_is_downloaded_once_without_its_dependencies(
        self, tmp_path: Path, cache: Path, convert: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index = tmp_path / "index"
        index.mkdir()
        name, info = "eyrie_tiny_model-1.0-py3-none-any.whl", "eyrie_tiny_model-1.0.dist-info"
        with zipfile.ZipFile(index / name, "w") as wheel:
            wheel.writestr("eyrie_tiny_model/b.gguf", "weights")
            needs = "Requires-Dist: eyrie-no-such-package"
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: eyrie-tiny-model\nVersion: 1.0\n{needs}\n"
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(index))
        folder = resolve_model("pypi:eyrie-tiny-model")
        (index / name).unlink()
        assert resolve_model("pypi:eyrie_tiny_model") == folder == cache / "pypi-eyrie-tiny-model-v1"
        assert convert == [b"weights"]

    def test_not_to_be_had(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        message = fails("pypi:eyrie-no-such-package")
        assert "'eyrie-no-such-package' is neither installed nor to be had by pip download" in message
        assert "No matching distribution" in message

    @pytest.mark.parametrize("name", ["", "--help", "a b", "../x", "a==1"])
    def test_what_is_no_name_reaches_no_command(self, name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source, "download_wheel", lambda *_: pytest.fail("downloaded"))
        assert f"pypi:{name} names no package" in fails(f"pypi:{name}")


class TestConfig:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "config.json is missing"),
            ("{", "config.json is not JSON"),
            ("[]", "has no field 'model_type'"),
            ("{}", "has no field 'model_type'"),
            ('{"model_type": "nosuch"}', "model_type 'nosuch'"),
            ('{"model_type": "llama", "hidden_size": "wide"}', "hidden_size"),
        ],
    )
    def test_faults_name_file_and_field(self, text: str | None, message: str, tmp_path: Path) -> None:
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        sentence = checkpoint_error(lambda: read_hf_config(tmp_path))
        assert str(tmp_path / "config.json") in sentence
        assert message in sentence

    def test_the_demo_model(self, demo_model_folder: Path) -> None:
        config: Any = read_hf_config(demo_model_folder)
        assert (config.model_type, config.num_hidden_layers, config.hidden_size) == ("llama", 30, 576)
        assert (config.vocab_size, config.eos_token_id, config.tie_word_embeddings) == (49152, 2, True)
        assert config.rope_parameters["rope_theta"] == 100000.0


class TestCommandLine:
    def test_it_prints_the_folder_without_loading_torch(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        code = (
            "import sys; from replicas.models.source import main; main(); "
            "assert not {'torch', 'transformers'} & {*sys.modules}"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
        assert done.stdout == f"{tmp_path}\n"

    def test_a_fault_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["source", "no such model"])
        with pytest.raises(SystemExit) as caught:
            source.main()
        assert str(caught.value.code).startswith("error: model 'no such model' is not known")
