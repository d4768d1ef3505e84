"""What is timed of one answer, and where a figure came from. Definitions as in vLLM's and NVIDIA's benchmarks."""

import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds and counts of one request."""

    first_token: float
    """TTFT: from submission to the first content."""
    end_to_end: float
    tokens: int
    """Output tokens by the engine's or server's own count."""

    @property
    def tpot(self) -> float:
        """Seconds an output token after the first: (end-to-end - TTFT) / (tokens - 1). Needs two tokens."""
        return (self.end_to_end - self.first_token) / (self.tokens - 1)

    @property
    def seconds_per_token(self) -> float:
        """End-to-end seconds over output tokens, prefill included."""
        return self.end_to_end / self.tokens


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Median of the ratios of pairs that were measured next to each other."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


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
