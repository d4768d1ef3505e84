"""The F16 copy of a GGUF has the same weights and says the same about them."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from benchmarks.peers.gguf_files import gguf_files, write_f16
from replicas.errors import ConfigError


def write_q4_1(path: Path) -> None:
    chance = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(1e5)
    writer.add_token_list(["a", "b", "ü"])
    writer.add_token_types([1, 1, 3])
    writer.add_add_bos_token(False)
    writer.add_file_type(int(LlamaFileType.MOSTLY_Q4_1))
    matrix = quantize(chance.normal(size=(3, 64)).astype(np.float32), GGMLQuantizationType.Q4_1)
    writer.add_tensor("blk.0.attn_q.weight", matrix, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.add_tensor("output_norm.weight", chance.normal(size=64).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_copy_has_the_same_weights_as_f16_and_the_same_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EYRIE_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "model.gguf"
    write_q4_1(source)
    own, f16 = gguf_files(str(source))
    assert own == source
    before, after = GGUFReader(source), GGUFReader(f16)
    by_name = {tensor.name: tensor for tensor in after.tensors}
    assert list(by_name) == [tensor.name for tensor in before.tensors]
    for tensor in before.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        copy = by_name[tensor.name]
        assert copy.shape.tolist() == tensor.shape.tolist()
        kind, expected = (
            (GGMLQuantizationType.F16, values.astype(np.float16))
            if values.ndim > 1
            else (GGMLQuantizationType.F32, values)
        )
        assert copy.tensor_type == kind
        assert np.array_equal(copy.data, expected)
    facts = {name: field.contents() for name, field in after.fields.items() if not name.startswith("GGUF.")}
    assert facts.pop("general.file_type") == LlamaFileType.MOSTLY_F16
    for name, value in facts.items():
        assert before.fields[name].contents() == value
    assert {"llama.block_count", "llama.rope.freq_base", "tokenizer.ggml.tokens"} <= set(facts)
    assert gguf_files(str(source)) == (own, f16)


def test_another_kind_of_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"llama\.cpp reads GGUF files, and some/folder is none"):
        gguf_files("some/folder")


def test_writing_over_a_file_does_not_read_it(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_q4_1(source)
    write_f16(source, target)
    again = target.read_bytes()
    write_f16(source, target)
    assert target.read_bytes() == again
