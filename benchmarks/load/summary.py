"""What a load came to, from its rows: medians and 95th percentiles of each session.

python -m benchmarks.load.summary results/load/smollm2-135m.jsonl
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.metrics import acceptance_rate, pooled
from benchmarks.results import HttpRequest, Results, read_results
from replicas.errors import ConfigError


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """In ms; None if there are none."""
    if not seconds:
        return None
    middle, high = np.percentile(seconds, [50, 95])
    return {"p50": round(1e3 * float(middle), 2), "p95": round(1e3 * float(high), 2)}


def summary(requests: Sequence[HttpRequest]) -> dict[str, Any]:
    """Figures of one session's requests. Failures count, and are in no time."""
    answers = [row.served for row in requests if row.served is not None]
    ends = [row.arrival + row.served.end_to_end for row in requests if row.served is not None]
    told = [one.acceptance for one in answers if one.acceptance is not None]
    acceptance = pooled(told)
    tokens = sum(one.tokens for one in answers)
    return {
        "requests": len(requests),
        "failed": len(requests) - len(answers),
        "ttft_ms": percentiles_ms([one.first_content for one in answers if one.first_content is not None]),
        "tpot_ms": percentiles_ms([tpot for one in answers if (tpot := one.tpot) is not None]),
        "end_to_end_ms": percentiles_ms([one.end_to_end for one in answers]),
        "tokens_a_second": round(tokens / max(ends), 2) if ends else None,
        "acceptance_rate": round(acceptance_rate(acceptance), 4) if told else None,
        "mean_acceptance_length": round(acceptance.mean_acceptance_length, 4) if told else None,
    }


def summaries(results: Results) -> list[dict[str, Any]]:
    """One for each session that has requests."""
    return [
        {"session": session.id, "began": session.began, "load": json.loads(session.provenance["load"]), **summary(own)}
        for session in results.sessions
        if (own := [row for row in results.requests if row.session == session.id])
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line of JSON a session."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    args = parser.parse_args(arguments)
    try:
        found = summaries(read_results(args.rows))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    if not found:
        print(f"{args.rows} holds no requests", file=sys.stderr)
        return 1
    for one in found:
        print(json.dumps(one))
    return 0


if __name__ == "__main__":
    sys.exit(main())
