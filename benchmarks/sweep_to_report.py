"""All of it, one after the other: sweep, schedule, verification, report. What `make sweep` runs.

    python -m benchmarks.sweep_to_report configs/sweeps/default.yaml

The schedule goes to configs/k_schedules, everything else to results. Interrupted, the same command goes on; to measure
anew, remove the files in results/sweeps and results/verifications. The exit status is that of the first part that did
not end well; 2 if the schedule is slower than K = 0 somewhere (the report is made all the same).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import sweep, verify_k_schedule, write_k_schedule
from benchmarks.report import __main__ as report
from benchmarks.sweep_config import file_stem, load_sweep_config, measured_model
from replicas.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--prompts", type=Path, help="JSON lines with `turns`, instead of the config's")
    parser.add_argument("--minutes", type=float, help="begin no run after this time; the same command goes on")
    parser.add_argument("--price", action="append", default=[], help="NAME=DOLLARS an hour of an instance; repeatable")
    args = parser.parse_args(arguments)
    try:
        stem = file_stem(*measured_model(load_sweep_config(args.config, args.prompts)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    begin = time.perf_counter()
    rows = sweep.RESULTS / f"{stem}.jsonl"
    schedule = write_k_schedule.FOLDER / f"{stem}.yaml"
    prompts = ["--prompts", str(args.prompts)] if args.prompts else []

    def left() -> list[str]:
        if args.minutes is None:
            return []
        return ["--minutes", str(max(args.minutes - (time.perf_counter() - begin) / 60, 0.0))]

    status = sweep.main([str(args.config), *prompts, *left()])
    if status == 0:
        status = write_k_schedule.main([str(rows)])
    if status == 0:
        status = verify_k_schedule.main([str(args.config), str(schedule), *prompts, *left()])
    if status in (0, verify_k_schedule.SLOWER):
        prices = [part for price in args.price for part in ("--price", price)]
        status = report.main([str(rows), "--schedule", str(schedule), *prices]) or status
    return status


if __name__ == "__main__":
    sys.exit(main())
