"""Safetensors checkpoints: single and sharded files give the same tensors; each fault is one sentence."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from replicas.errors import CheckpointError
from replicas.models.checkpoint import INDEX_FILE, SINGLE_FILE, Checkpoint
from tests.reference.sentences import checkpoint_error

TENSORS = {
    "a.weight": torch.arange(6.0).view(2, 3),
    "b.weight": torch.arange(4, dtype=torch.float16),
    "b.bias": torch.tensor([7], dtype=torch.int64),
}


def write_shards(folder: Path, index: dict[str, str] | None = None) -> None:
    """TENSORS as two shards, and an index that places them (`index` overrides its map)."""
    shards = {"a.safetensors": ["a.weight"], "b.safetensors": ["b.weight", "b.bias"]}
    for file, names in shards.items():
        save_file({name: TENSORS[name] for name in names}, folder / file)
    places = {name: file for file, names in shards.items() for name in names}
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": places if index is None else index}))


def fails(folder: Path) -> str:
    """The one sentence that opening `folder` ends with."""
    return checkpoint_error(lambda: Checkpoint(folder))


class TestReading:
    @pytest.fixture(params=["single", "sharded"])
    def folder(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        if request.param == "single":
            save_file(TENSORS, tmp_path / SINGLE_FILE)
        else:
            write_shards(tmp_path)
        return tmp_path

    def test_every_tensor_by_its_name(self, folder: Path) -> None:
        with Checkpoint(folder) as checkpoint:
            assert set(checkpoint) == set(TENSORS)
            assert len(checkpoint) == 3
            for name, expected in TENSORS.items():
                value: Tensor = checkpoint[name]
                assert value.dtype == expected.dtype
                assert torch.equal(value, expected)

    def test_a_missing_tensor_is_named(self, folder: Path) -> None:
        with Checkpoint(folder) as checkpoint:
            assert "c.weight" not in checkpoint
            assert checkpoint.optional("c.weight", 2) is None
            with pytest.raises(CheckpointError, match=r"no tensor 'c\.weight'"):
                checkpoint["c.weight"]

    def test_the_shape_must_be_the_one_of_the_config(self, folder: Path) -> None:
        with Checkpoint(folder) as checkpoint:
            assert torch.equal(checkpoint.tensor("a.weight", 2, 3), TENSORS["a.weight"])
            with pytest.raises(
                CheckpointError, match=r"'a\.weight' has shape \(2, 3\), config\.json asks for \(3, 2\)"
            ):
                checkpoint.tensor("a.weight", 3, 2)
            with pytest.raises(CheckpointError, match=r"'b\.bias'"):
                checkpoint.optional("b.bias", 2)


class TestFaults:
    def test_no_safetensors(self, tmp_path: Path) -> None:
        message = fails(tmp_path)
        assert str(tmp_path) in message
        assert SINGLE_FILE in message

    @pytest.mark.parametrize("length", [0, 7, 60, -1])
    def test_a_truncated_file_is_named(self, length: int, tmp_path: Path) -> None:
        save_file(TENSORS, tmp_path / SINGLE_FILE)
        whole = (tmp_path / SINGLE_FILE).read_bytes()
        (tmp_path / SINGLE_FILE).write_bytes(whole[:length])
        assert f"{tmp_path / SINGLE_FILE} is truncated" in fails(tmp_path)

    def test_a_truncated_shard_is_named(self, tmp_path: Path) -> None:
        write_shards(tmp_path)
        path = tmp_path / "b.safetensors"
        path.write_bytes(path.read_bytes()[:-2])
        assert f"{path} is truncated" in fails(tmp_path)

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        write_shards(tmp_path)
        (tmp_path / "b.safetensors").unlink()
        assert f"{tmp_path / 'b.safetensors'} is missing" in fails(tmp_path)

    def test_a_shard_that_lacks_what_the_index_says(self, tmp_path: Path) -> None:
        write_shards(tmp_path, {"a.weight": "a.safetensors", "c.weight": "b.safetensors"})
        message = fails(tmp_path)
        assert str(tmp_path / "b.safetensors") in message
        assert "'c.weight'" in message

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
    def test_an_index_that_is_none(self, text: str, tmp_path: Path) -> None:
        (tmp_path / INDEX_FILE).write_text(text)
        assert f"{tmp_path / INDEX_FILE} is not an index" in fails(tmp_path)
