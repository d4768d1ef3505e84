"""Measure every K at every batch size, with the engine alone: no HTTP, no Ray.

    python -m benchmarks.sweep configs/sweeps/default.yaml

Rows go to results/sweeps/MODEL-DEVICE.jsonl as they come. Ctrl-C ends it with what it has; the same command goes on.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.measurers import measurer, ordered
from benchmarks.measuring import UNFINISHED, Task, measure, new_session
from benchmarks.results import Cell
from benchmarks.sweep_config import SweepConfig, config_hash, file_stem, load_sweep_config, measured_model
from replicas.errors import EyrieError
from serve_app.k_policy import FixedK

RESULTS = Path("results/sweeps")


def tasks(config: SweepConfig) -> list[Task]:
    """All runs in the order in which they are done.

    Each repeat is a shuffled round of all cells, so that a machine that drifts slows all of them alike.
    """
    cells = [Cell(k, batch, context) for k, batch, context in product(config.k, config.batch, config.context_tokens)]
    ordered: list[Task] = []
    for repeat in range(config.repeats):
        shuffled = random.Random(f"{config.seed} {repeat}").sample(cells, len(cells))
        ordered += [Task(cell, repeat) for cell in shuffled]
    return ordered


def sweep(config: SweepConfig, out: Path | None, minutes: float | None) -> int:
    """Do what is left of `config`; returns the exit status. Raises ConfigError."""
    model, engine = measured_model(config)
    return measure(
        ordered(tasks(config), engine),
        lambda cell: FixedK(cell.k or 0),
        lambda: measurer(config, engine),
        new_session(config_hash(config, engine), model, engine),
        out or RESULTS / f"{file_stem(model, engine)}.jsonl",
        minutes,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--prompts", type=Path, help="JSON lines with `turns`, instead of the config's")
    parser.add_argument("--out", type=Path, help=f"file of rows; {RESULTS}/MODEL-DEVICE.jsonl by default")
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"begin no run after this time; the status is then {UNFINISHED}, and the same command goes on",
    )
    args = parser.parse_args(arguments)
    try:
        return sweep(load_sweep_config(args.config, args.prompts), args.out, args.minutes)
    except EyrieError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
