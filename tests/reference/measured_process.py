"""A script run to its end for the line of JSON that it prints, and the memory of all its processes at their peak."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

PROJECT_ROOT = Path(__file__).parents[2]
PERIOD_S = 0.1


@dataclass(frozen=True)
class Measured:
    """What a process said, and what its tree took."""

    told: dict[str, Any]
    peak_bytes: int
    """Resident, shared pages counted once: the kernel's PSS."""
    peak_own_bytes: int
    """Of it what is no file's: pages of a checkpoint that was read can be dropped at any time."""
    peak_rss_bytes: int
    """The sum of what each process calls resident."""


def measured(arguments: Iterable[str], timeout_s: float, log: Path) -> Measured:
    """`python -m arguments`, whose log goes to `log`. Fails where it does."""
    peaks, over = {"Pss": 0, "Pss_Anon": 0, "Rss": 0}, threading.Event()
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=PROJECT_ROOT,
            env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT), "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

        def watch() -> None:
            while not over.wait(PERIOD_S):
                for name, size in memory_of_tree(process.pid).items():
                    peaks[name] = max(peaks[name], size)

        watcher = threading.Thread(target=watch, name="memory")
        watcher.start()
        try:
            output, _ = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
            over.set()
            watcher.join()
    assert process.returncode == 0, log.read_text()[-4000:]
    [line] = [line for line in output.splitlines() if line.startswith("{")]
    return Measured(json.loads(line), peaks["Pss"], peaks["Pss_Anon"], peaks["Rss"])


def memory_of_tree(pid: int) -> dict[str, int]:
    """Bytes by kind of a process and its descendants."""
    total = {"Pss": 0, "Pss_Anon": 0, "Rss": 0}
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(OSError):
                for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                    name, _, value = line.partition(":")
                    if name in total:
                        total[name] += int(value.split()[0]) * 1024
    return total
