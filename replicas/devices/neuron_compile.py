"""Filling Neuron's compile cache ahead, by Neuron's own tool. Written to its documents: Neuron untested.

`neuron_parallel_compile COMMAND` runs COMMAND once with NEURON_EXTRACT_GRAPHS_ONLY set, so that every graph is traced
and none is run, then compiles what it found with several compilers at once, into NEURON_COMPILE_CACHE_URL.
"""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from replicas.devices.environment import CACHE_VARIABLE
from replicas.errors import ConfigError

TOOL = "neuron_parallel_compile"
MODULES = "neuronxcc-*/MODULE_*"
"""Entries of a cache: by compiler version, then by graph."""
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class CacheCount:
    """Graphs in a cache."""

    traced: int
    compiled: int


class CacheFiller(Protocol):
    """Whatever turns a command that runs every program into a filled cache."""

    def fill(self, command: Sequence[str], workers: int, progress: Callable[[CacheCount], None]) -> None:
        """Run `command`, compile its graphs with `workers` at once. Raises ConfigError if that fails."""
        ...


class NeuronParallelCompile:
    """Neuron's tool; progress is counted in the cache, if that is a folder."""

    def __init__(self, cache_url: str, search_path: str | None = None) -> None:
        """Raises ConfigError where the tool is not installed."""
        tool = shutil.which(TOOL, path=search_path)
        if tool is None:
            raise ConfigError(f"{TOOL} is not installed: it comes with torch-neuronx, so pip install 'eyrie[neuron]'")
        self._tool = tool
        self._cache_url = cache_url
        self._folder = cache_folder(cache_url)

    def fill(self, command: Sequence[str], workers: int, progress: Callable[[CacheCount], None]) -> None:
        """See CacheFiller."""
        before = count_cache(self._folder)
        arguments = [self._tool, "--num_parallel", str(workers), *command]
        process = subprocess.Popen(arguments)
        try:
            while process.poll() is None:
                try:
                    process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    progress(_since(before, count_cache(self._folder)))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        progress(_since(before, count_cache(self._folder)))
        if process.returncode:
            raise ConfigError(
                f"{TOOL} ended with status {process.returncode}: its own messages stand above; what was compiled is in "
                f"{CACHE_VARIABLE}={self._cache_url}, and the next run goes on from there"
            )


def cache_folder(url: str) -> Path | None:
    """The folder that `url` names; None for S3."""
    return None if url.startswith("s3://") else Path(url.removeprefix("file://")).expanduser()


def count_cache(folder: Path | None) -> CacheCount:
    """Graphs in the cache at `folder`: those that are traced, and those whose program is whole."""
    modules = list(folder.glob(MODULES)) if folder else []
    return CacheCount(len(modules), sum((module / "model.done").exists() for module in modules))


def _since(before: CacheCount, now: CacheCount) -> CacheCount:
    return CacheCount(now.traced - before.traced, now.compiled - before.compiled)
