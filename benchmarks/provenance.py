"""Where a figure came from."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

VARIABLES = ("GOMP_SPINCOUNT", "GLIBC_TUNABLES", "OMP_NUM_THREADS", "VLLM_CPU_NUM_OF_RESERVED_CPU")
"""Of the environment; each of them changes what a step costs."""


def provenance() -> dict[str, str]:
    """Commit, machine, versions and command of this run."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    names = ("torch", "transformers", "ray")
    return {
        "commit": commit or "unknown",
        "machine": f"{platform.machine()}, {_processor()}",
        "threads": str(torch.get_num_threads()),
        "environment": " ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
        "command": " ".join(["python -m", *_module_and_arguments()]),
    }


def _module_and_arguments() -> list[str]:
    module = sys.modules["__main__"].__spec__
    return [module.name.removesuffix(".__main__") if module else sys.argv[0], *sys.argv[1:]]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor()
