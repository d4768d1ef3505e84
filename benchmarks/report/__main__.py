"""Make one page about a sweep: HTML that needs nothing beside it, and a Markdown summary.

    python -m benchmarks.report results/sweeps/smollm2-135m-cpu.jsonl --price c7i.large=0.09

The schedule and the verification's rows are found by the sweep's name, unless they are given.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fit.fit import fit_sweep
from benchmarks.report.content import Findings, sections
from benchmarks.report.render import as_html, as_markdown
from benchmarks.report.serving_figures import parse_prices, serving_figures
from benchmarks.results import read_results
from benchmarks.verify_k_schedule import verdicts
from replicas.errors import ConfigError
from serve_app.k_schedule import load_k_schedule

REPORTS = Path("results/reports")
SCHEDULES = Path("configs/k_schedules")
VERIFICATIONS = Path("results/verifications")


def findings(results: Path, schedule: Path | None, verification: Path | None, prices: Sequence[str]) -> Findings:
    """Everything that was measured. Raises ConfigError."""
    found = read_results(results)
    fit = fit_sweep(found)
    k_schedule = load_k_schedule(schedule) if schedule is not None else None
    runs = read_results(verification).runs if verification is not None and k_schedule is not None else ()
    told = verdicts(runs, k_schedule) if k_schedule is not None and runs else []
    try:
        by_instance = parse_prices(prices)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Findings(fit, serving_figures(found.runs), k_schedule, told, by_instance)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--schedule", type=Path, help=f"{SCHEDULES}/NAME.yaml by default, if it is there")
    parser.add_argument("--verification", type=Path, help=f"{VERIFICATIONS}/NAME.jsonl by default, if it is there")
    parser.add_argument("--price", action="append", default=[], help="NAME=DOLLARS an hour of an instance; repeatable")
    parser.add_argument("--out", type=Path, help=f"path without ending; {REPORTS}/NAME by default")
    args = parser.parse_args(arguments)
    name = args.results.stem
    schedule = args.schedule or _if_there(SCHEDULES / f"{name}.yaml")
    verification = args.verification or _if_there(VERIFICATIONS / f"{name}.jsonl")
    out = args.out or REPORTS / name
    try:
        told = sections(findings(args.results, schedule, verification, args.price))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    title = f"Speculation measured: {name}"
    out.parent.mkdir(parents=True, exist_ok=True)
    for ending, text in ((".html", as_html(title, told)), (".md", as_markdown(title, told))):
        path = out.with_name(out.name + ending)
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
