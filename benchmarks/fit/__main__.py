"""Print what a sweep's rows tell, as Markdown.

python -m benchmarks.fit results/sweeps/smollm2-135m-cpu.jsonl
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fit.fit import fit_sweep
from benchmarks.fit.tables import acceptance_table, cost_table, held_out_sentence, speedup_table
from benchmarks.results import read_results
from replicas.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    path = parser.parse_args(arguments).results
    try:
        fit = fit_sweep(read_results(path))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(acceptance_table(fit), cost_table(fit), held_out_sentence(fit), speedup_table(fit), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
