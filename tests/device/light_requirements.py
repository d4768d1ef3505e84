"""Prints what the engine and its tests need besides torch, for an environment that gets its torch by itself.

The versions are pyproject.toml's. Left out is what only serving needs, and what would install torch.
"""

import re
import sys
from pathlib import Path
from typing import Any

# Python 3.10 has no tomllib; every environment has pip.
from pip._vendor import tomli

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
LEFT_OUT = {"torch", "accelerate", "ray", "fastapi"}
TESTS = {"pytest", "pytest-timeout"}
OF_TORCH = ["absl-py", "fsspec", "jinja2", "networkx", "requests", "sympy", "typing-extensions"]
"""What torch and torch_xla themselves import."""


def name(requirement: str) -> str:
    """Of the distribution, without extras and versions."""
    return re.split(r"[^A-Za-z0-9_.-]", requirement)[0]


def main() -> None:
    """One requirement a line."""
    project: dict[str, Any] = tomli.loads(PROJECT.read_text())["project"]
    needed = [line for line in project["dependencies"] if name(line) not in LEFT_OUT]
    needed += [line for line in project["optional-dependencies"]["dev"] if name(line) in TESTS]
    sys.stdout.write("\n".join([*needed, *OF_TORCH]) + "\n")


if __name__ == "__main__":
    main()
