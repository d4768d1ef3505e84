"""Reading tensors of a safetensors checkpoint, one file or sharded, lazily and with clear errors."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from replicas.errors import CheckpointError
from replicas.models.padding import PaddedSize
from replicas.models.sharding import RankSlice

Size = int | PaddedSize | RankSlice
"""Of a dimension: as it is stored, with padding, or a rank's part of it."""
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class _Index(BaseModel):
    """model.safetensors.index.json: the file of each tensor."""

    weight_map: dict[str, str]


class Checkpoint(Mapping[str, Tensor]):
    """The tensors of a folder by name; each is read when asked for. Close it when the model is built."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        self._read: set[str] = set()
        if (folder / INDEX_FILE).exists():
            self._open_shards()
        elif (folder / SINGLE_FILE).exists():
            self._file_of = dict.fromkeys(self._open(SINGLE_FILE).keys(), SINGLE_FILE)
        else:
            raise CheckpointError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}")

    def _open_shards(self) -> None:
        try:
            weight_map = _Index.model_validate_json((self.folder / INDEX_FILE).read_bytes()).weight_map
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise CheckpointError(
                f"{self.folder / INDEX_FILE} is not an index with a 'weight_map': {reason}"
            ) from error
        for name in sorted(set(weight_map.values())):
            held = set(self._open(name).keys())
            missing = sorted(tensor for tensor, file in weight_map.items() if file == name and tensor not in held)
            if missing:
                raise CheckpointError(
                    f"{self.folder / name} lacks tensor {missing[0]!r}, which {INDEX_FILE} places there"
                )
        self._file_of = weight_map

    def _open(self, name: str) -> Any:
        path = self.folder / name
        if not path.exists():
            raise CheckpointError(f"{path} is missing, though {INDEX_FILE} names it")
        try:
            handle = self._stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is truncated or no safetensors file: {error}") from error
        self._files[name] = handle
        return handle

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise CheckpointError(f"{self.folder} has no tensor {name!r}")
        self._read.add(name)
        return self._files[self._file_of[name]].get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def tensor(self, name: str, *shape: Size) -> Tensor:
        """Tensor `name`, which must have `shape` in the checkpoint; padded sizes are padded. Raises CheckpointError.

        Of what other ranks keep nothing is read.
        """
        if name not in self._file_of:
            raise CheckpointError(f"{self.folder} has no tensor {name!r}")
        found = tuple(self._files[self._file_of[name]].get_slice(name).get_shape())
        stored = tuple(size if isinstance(size, int) else size.stored for size in shape)
        if found != stored:
            raise CheckpointError(f"{self.folder}: tensor {name!r} has shape {found}, config.json asks for {stored}")
        value = self._part(name, shape)
        for dim, size in enumerate(shape):
            value = value if isinstance(size, int) else size.pad(value, dim)
        return value

    def _part(self, name: str, shape: tuple[Size, ...]) -> Tensor:
        if all(not isinstance(size, RankSlice) or size.is_whole for size in shape):
            return self[name]
        parts = [(size.start, size.stop) if isinstance(size, RankSlice) else None for size in shape]
        self._read.add(name)
        # safetensors refuses an empty part: one element of it is read, and dropped.
        ranges = [slice(None) if part is None else slice(part[0], part[1]) for part in parts]
        empty = [dim for dim, part in enumerate(parts) if part is not None and part[0] == part[1]]
        for dim in empty:
            ranges[dim] = slice(0, 1)
        value: Tensor = self._files[self._file_of[name]].get_slice(name)[tuple(ranges)]
        for dim in empty:
            value = value.narrow(dim, 0, 0)
        return value

    def optional(self, name: str, *shape: Size) -> Tensor | None:
        """Like `tensor`, or None where the checkpoint has no such name."""
        return self.tensor(name, *shape) if name in self else None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, from the files' headers: no weight is read."""
        return {name: tuple(self._files[file].get_slice(name).get_shape()) for name, file in self._file_of.items()}

    @property
    def unread(self) -> list[str]:
        """Names that nobody has asked for, sorted."""
        return sorted(self._file_of.keys() - self._read)

    def close(self) -> None:
        """Release the files."""
        self._stack.close()
        self._files.clear()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
