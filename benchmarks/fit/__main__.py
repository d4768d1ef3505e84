"""Print what a sweep's rows tell, as Markdown.

    python -m benchmarks.fit results/sweeps/smollm2-135m-cpu.jsonl
    python -m benchmarks.fit results/sweeps/smollm2-135m-cpu.jsonl --hold-out

With --hold-out: how well a model of T(batch, K) predicts each cell from all the others.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fit.fit import fit_sweep
from benchmarks.fit.tables import (
    acceptance_table,
    cost_table,
    held_out_errors,
    held_out_sentence,
    held_out_table,
    speedup_table,
)
from benchmarks.results import read_results
from replicas.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--hold-out", action="store_true", help="only this: each cell, predicted from the others")
    args = parser.parse_args(arguments)
    try:
        fit = fit_sweep(read_results(args.results))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    errors = [held_out_errors(fit)] if fit.held_out else []
    if args.hold_out:
        told = [held_out_sentence(fit), *([held_out_table(fit)] if fit.held_out else []), *errors]
    else:
        told = [acceptance_table(fit), cost_table(fit), held_out_sentence(fit), *errors, speedup_table(fit)]
    print(*told, sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
