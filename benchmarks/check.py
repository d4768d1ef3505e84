"""Is the working tree slower than a commit? Both engines run on this machine, side by side, the same tasks in turn.

    python -m benchmarks.check configs/sweeps/check.yaml --base HEAD

The exit status is 2 for a regression, and 4 if the machine is too noisy to tell.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from tqdm import tqdm

from benchmarks.check_worker import READY, RUN, TASK
from benchmarks.fit.bootstrap import Floats, Indices, Interval, interval
from benchmarks.line_worker import LineWorker
from benchmarks.measuring import Task
from benchmarks.results import Cell, Run
from benchmarks.sweep_config import SweepConfig, load_sweep_config
from benchmarks.table import Table
from replicas.errors import ConfigError, EyrieError

PROJECT = Path(__file__).parent.parent
TOLERANCE = 0.03
"""A working tree slower by less is none the worse."""
TOO_WIDE = 0.10
"""An interval that reaches further above 1 than this, without lying above it, says nothing."""
CONFIDENCE = 0.99
REGRESSION, TOO_NOISY = 2, 4
Outcome = Literal["no slower", "regression", "too noisy to tell"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One cell: TPOT of the working tree over that of the base, by pairs of answers to the same prompt."""

    cell: Cell
    ratio: float
    interval: Interval

    @property
    def outcome(self) -> Outcome:
        """What the interval allows to say."""
        if self.interval.low > 1 + TOLERANCE:
            return "regression"
        return "too noisy to tell" if self.interval.high > 1 + TOO_WIDE else "no slower"


class Worker:
    """A process that runs tasks with the code of one revision."""

    def __init__(self, name: str, code: Path, config: Path) -> None:
        """Returns when its engine is warm. Raises ConfigError if it does not get that far."""
        command = [sys.executable, "-m", "benchmarks.check_worker", str(config)]
        self._lines = LineWorker(f"the engine of {name}", command, code, os.environ | {"PYTHONPATH": str(code)})
        if self._lines.read() != READY:
            raise ConfigError(f"the engine of {name} said something else than that it is ready")

    def run(self, task: Task) -> Run:
        """Do `task`. Raises ConfigError if the process ends."""
        return RUN.validate_json(self._lines.ask(TASK.dump_json(task)))

    def close(self) -> None:
        """End the process."""
        self._lines.close()


@contextmanager
def checked_out(revision: str) -> Generator[Path]:
    """A folder with the project at `revision`, for as long as it is needed. Raises ConfigError if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base"
        made = subprocess.run(
            ["git", "worktree", "add", "--detach", str(path), revision],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise ConfigError(f"--base is {revision!r}, which git cannot check out: {' '.join(made.stderr.split())}")
        try:
            yield path
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(path)], cwd=PROJECT, check=False)


def tasks(config: SweepConfig) -> list[Task]:
    """Every cell once a repeat, in a fresh random order."""
    cells = [Cell(k, batch, context) for k, batch, context in product(config.k, config.batch, config.context_tokens)]
    chance = random.Random(config.seed)
    return [Task(cell, repeat) for repeat in range(config.repeats) for cell in chance.sample(cells, len(cells))]


def compare(ours: Sequence[Run], base: Sequence[Run]) -> list[Comparison]:
    """By cell. The two sequences have the same tasks in the same order; one ratio a repeat, as in a verification."""
    ratios: dict[Cell, list[float]] = {}
    for one, other in zip(ours, base, strict=True):
        pairs = [(a, b) for a, b in zip(one.tpots, other.tpots, strict=True) if a and b]
        if pairs:
            ratios.setdefault(one.cell, []).append(median(a / b for a, b in pairs))
    found: list[Comparison] = []
    for cell in sorted(ratios, key=lambda cell: (cell.context_tokens or 0, cell.batch, cell.k or 0)):
        values = np.array(ratios[cell])

        def middle(index: Indices, values: Floats = values) -> Floats:
            return np.median(values[index], axis=-1)

        found.append(Comparison(cell, float(np.median(values)), interval(middle, (len(values),), CONFIDENCE)))
    return found


def comparison_table(found: Sequence[Comparison]) -> Table:
    """One row a cell."""
    rows = [(str(one.cell.batch), str(one.cell.k), f"{one.ratio:.3f}", f"{one.interval}", one.outcome) for one in found]
    return Table(("batch", "K", "TPOT over the base's", "99 %", "outcome"), rows)


def exit_status(found: Sequence[Comparison]) -> int:
    """The worst of all cells."""
    outcomes = {one.outcome for one in found}
    if "regression" in outcomes:
        return REGRESSION
    return TOO_NOISY if "too noisy to tell" in outcomes else 0


def check(path: Path, base: str) -> list[Comparison]:
    """Measure both. Raises ConfigError."""
    config = load_sweep_config(path)
    ours: list[Run] = []
    theirs: list[Run] = []
    chance = random.Random(config.seed)
    with ExitStack() as stack:
        code = stack.enter_context(checked_out(base))
        new, old = Worker("the working tree", PROJECT, path.resolve()), Worker(base, code, path.resolve())
        for worker in (new, old):
            stack.callback(worker.close)
        for task in tqdm(tasks(config), unit="task", file=sys.stderr):
            if chance.random() < 0.5:
                ours.append(new.run(task))
                theirs.append(old.run(task))
            else:
                theirs.append(old.run(task))
                ours.append(new.run(task))
    return compare(ours, theirs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--base", default="HEAD", help="the commit that the working tree is compared with")
    args = parser.parse_args(arguments)
    try:
        found = check(args.config, args.base)
    except EyrieError as error:
        print(error, file=sys.stderr)
        return 1
    print(comparison_table(found))
    return exit_status(found)


if __name__ == "__main__":
    sys.exit(main())
