"""Is a schedule anywhere slower than no speculation? Interleaved runs of it, of K = 0, and of the best fixed K.

    python -m benchmarks.verify_k_schedule configs/sweeps/default.yaml configs/k_schedules/smollm2-135m-cpu.yaml

The exit status is 2 if at any batch of the sweep the schedule's TPOT is above that of K = 0 by more than the noise.
"""

import argparse
import hashlib
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.fit.bootstrap import Floats, Indices, Interval, interval
from benchmarks.measurers import measurer, ordered
from benchmarks.measuring import Task, measure, new_session
from benchmarks.results import Cell, Run, read_results
from benchmarks.sweep_config import SweepConfig, config_hash, file_stem, load_sweep_config, measured_model
from benchmarks.table import Table
from replicas.errors import EyrieError
from replicas.scheduling.k_policy import KPolicy
from serve_app.k_policy import FixedK, follower_of
from serve_app.k_schedule import KSchedule, load_k_schedule

RESULTS = Path("results/verifications")
SLOWER = 2
"""Exit status of a schedule that loses somewhere."""
CONFIDENCE = 0.99
"""Of the interval of a batch: there are several, and each may raise a false alarm."""
TOLERANCE = 0.01
"""A ratio this near to 1 is none, however often it is measured."""
FEWEST_REPEATS = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """The schedule at one batch; ratios are of TPOT, below 1 where it is faster."""

    batch: int
    context_tokens: int | None
    k: int
    """What the schedule has for this batch."""
    to_plain: float
    to_plain_interval: Interval
    fixed_k: int
    to_fixed: float
    to_fixed_interval: Interval

    @property
    def is_slower(self) -> bool:
        """True if it loses to K = 0 by more than the noise."""
        return self.to_plain_interval.low > 1 + TOLERANCE


def verification_tasks(config: SweepConfig, fixed_k: int, repeats: int) -> list[Task]:
    """Side by side at each batch: K = 0, the fixed K and the schedule, in a fresh random order."""
    tasks: list[Task] = []
    chance = random.Random(config.seed)
    places = list(product(config.batch, config.context_tokens))
    for repeat in range(repeats):
        for batch, context in chance.sample(places, len(places)):
            modes = chance.sample([*dict.fromkeys((0, fixed_k)), None], 3 if fixed_k else 2)
            tasks += [Task(Cell(k, batch, context), repeat) for k in modes]
    return tasks


def verdicts(runs: Sequence[Run], schedule: KSchedule) -> list[Verdict]:
    """One for each batch and context of `runs`."""
    places = dict.fromkeys((run.cell.batch, run.cell.context_tokens) for run in runs)
    found: list[Verdict] = []
    for batch, context in sorted(places, key=lambda place: (place[1] or 0, place[0])):
        plain = repeat_ratios(runs, Cell(None, batch, context), Cell(0, batch, context))
        fixed = repeat_ratios(runs, Cell(None, batch, context), Cell(schedule.best_fixed_k, batch, context))
        found.append(
            Verdict(
                batch,
                context,
                schedule.k_of(batch),
                median(plain),
                _spread(plain),
                schedule.best_fixed_k,
                median(fixed),
                _spread(fixed),
            )
        )
    return found


def repeat_ratios(runs: Iterable[Run], ours: Cell, theirs: Cell) -> list[float]:
    """For each repeat, the median over its answers of our TPOT over theirs to the same prompt.

    One figure a repeat: what disturbs a run disturbs all of its answers.
    """
    by_key = {(run.cell, run.repeat): run.tpots for run in runs}
    repeats = sorted({repeat for cell, repeat in by_key if cell == ours and (theirs, repeat) in by_key})
    found: list[float] = []
    for repeat in repeats:
        pairs = zip(by_key[ours, repeat], by_key[theirs, repeat], strict=True)
        ratios = [a / b for a, b in pairs if a and b]
        if ratios:
            found.append(median(ratios))
    return found


def verdict_table(found: Sequence[Verdict]) -> Table:
    """One row a verdict."""
    rows = [
        (
            str(verdict.batch),
            str(verdict.context_tokens or "as is"),
            str(verdict.k),
            f"{verdict.to_plain:.3f} ({verdict.to_plain_interval})",
            f"{verdict.to_fixed:.3f} ({verdict.to_fixed_interval})",
            "slower than K = 0" if verdict.is_slower else "holds",
        )
        for verdict in found
    ]
    fixed = found[0].fixed_k
    head = ("batch", "context", "K", "TPOT over K = 0 (99 %)", f"TPOT over fixed K = {fixed} (99 %)", "verdict")
    return Table(head, rows)


def _spread(ratios: Sequence[float]) -> Interval:
    values = np.array(ratios)

    def middle(index: Indices) -> Floats:
        return np.median(values[index], axis=-1)

    return interval(middle, (len(values),), CONFIDENCE)


def _policy(cell: Cell, schedule: KSchedule) -> KPolicy:
    return follower_of(schedule) if cell.k is None else FixedK(cell.k)


def verify(config: SweepConfig, schedule: KSchedule, repeats: int, out: Path | None, minutes: float | None) -> int:
    """Measure what is left, print the verdicts; returns the exit status. Raises ConfigError."""
    model, engine = measured_model(config)
    path = out or RESULTS / f"{file_stem(model, engine)}.jsonl"
    what = f"{config_hash(config, engine)} {schedule.buckets} {schedule.hold_steps} {schedule.best_fixed_k} {repeats}"
    session = new_session(hashlib.sha256(what.encode()).hexdigest()[:16], model, engine)
    status = measure(
        ordered(verification_tasks(config, schedule.best_fixed_k, repeats), engine),
        lambda cell: _policy(cell, schedule),
        lambda: measurer(config, engine),
        session,
        path,
        minutes,
    )
    if status:
        return status
    found = verdicts(read_results(path).runs, schedule)
    print(verdict_table(found))
    return SLOWER if any(verdict.is_slower for verdict in found) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("schedule", type=Path)
    parser.add_argument("--repeats", type=int, default=5, help=f"at least {FEWEST_REPEATS}")
    parser.add_argument("--prompts", type=Path, help="JSON lines with `turns`, instead of the config's")
    parser.add_argument("--out", type=Path, help=f"file of rows; {RESULTS}/MODEL-DEVICE.jsonl by default")
    parser.add_argument("--minutes", type=float, help="begin no run after this time; the same command goes on")
    args = parser.parse_args(arguments)
    if args.repeats < FEWEST_REPEATS:
        parser.error(f"--repeats is {args.repeats}; allowed: {FEWEST_REPEATS} or more, to tell a loss from noise")
    try:
        config = load_sweep_config(args.config, args.prompts)
        return verify(config, load_k_schedule(args.schedule), args.repeats, args.out, args.minutes)
    except EyrieError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
