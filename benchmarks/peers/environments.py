"""The Python of each peer: an environment of its own, which `make` makes when it is first needed."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from replicas.errors import ConfigError
from serve_app.checkpoint_paths import PROJECT_ROOT

ENVIRONMENTS: Mapping[str, str] = {
    "transformers": ".venv-peers/transformers",
    "llama.cpp": ".venv-peers/llama.cpp",
    "vllm": ".venv-vllm",
}
"""Folders in the project; the Makefile has their recipes. Nothing of ours is installed in them, except in vLLM's."""


def named_interpreters(pairs: Sequence[str]) -> dict[str, Path]:
    """Of ["vllm=PATH", ...]. Raises ConfigError."""
    found: dict[str, Path] = {}
    for pair in pairs:
        name, _, path = pair.partition("=")
        if name not in ENVIRONMENTS or not Path(path).is_file():
            names = ", ".join(ENVIRONMENTS)
            raise ConfigError(f"--python: got {pair!r}; allowed: NAME=PATH of a Python that exists, NAME of {names}")
        # Not resolved: an environment's Python is a link, and knows itself by its own place.
        found[name] = Path(path).absolute()
    return found


def interpreter(name: str, named: Mapping[str, Path]) -> Path:
    """The Python of peer `name`, in `named` or made now. Raises ConfigError if it cannot be made."""
    if name in named:
        return named[name]
    folder = ENVIRONMENTS[name]
    made = subprocess.run(["make", "-C", str(PROJECT_ROOT), f"{folder}/installed"], check=False)
    if made.returncode:
        raise ConfigError(
            f"the environment of {name} was not made (see above); leave the peer out with --peers, or name a Python "
            f"that has it with --python {name}=PATH"
        )
    return PROJECT_ROOT / folder / "bin" / "python"
