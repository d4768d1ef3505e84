"""A load that changes, stage by stage: replicas, failures, TTFT and TPOT while it had so many users.

python -m benchmarks.load.stages results/load/smollm2-135m.jsonl
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from benchmarks.load.ramp import Ramp
from benchmarks.load.summary import percentiles_ms
from benchmarks.results import Fleet, HttpRequest, Results, read_results
from benchmarks.table import Table
from replicas.errors import ConfigError

TOO_MANY = "HTTP 429"


@dataclass(frozen=True, slots=True)
class Stage:
    """The time with so many users, from one change of their number to the next."""

    begin: float
    """Seconds since the session began."""
    end: float
    users: int
    replicas: tuple[int, ...]
    """One after the other; the first ran when it began."""
    requests: tuple[HttpRequest, ...]
    """That were sent in it, wherever they ended."""

    @property
    def refused(self) -> int:
        """Requests that got a 429."""
        return sum((row.failure or "").startswith(TOO_MANY) for row in self.requests)

    @property
    def failed(self) -> int:
        """Requests that failed otherwise."""
        return sum(row.failure is not None for row in self.requests) - self.refused


def fleet_rows(session: str, ramp: Ramp, seen: Sequence[tuple[float, int]]) -> list[Fleet]:
    """A row at each change of users or replicas; `seen` has (seconds, running replicas), ascending."""

    def at(seconds: float) -> int:
        before = [running for moment, running in seen if moment <= seconds]
        return before[-1] if before else seen[0][1]

    over = ramp.levels[-1][0]
    moments = sorted({begin for begin, _ in ramp.levels} | {moment for moment, _ in seen if 0 < moment < over})
    return [Fleet(session, round(moment, 2), ramp.users(moment) or 0, at(moment)) for moment in moments]


def stages(requests: Sequence[HttpRequest], fleets: Sequence[Fleet]) -> list[Stage]:
    """Of one session's rows. Requests from after its last change belong to none."""
    runs = [list(rows) for _, rows in groupby(sorted(fleets, key=lambda row: row.seconds), lambda row: row.users)]
    ends = [rows[0].seconds for rows in runs[1:]]
    found: list[Stage] = []
    for rows, end in zip(runs, ends, strict=False):
        begin = rows[0].seconds
        own = tuple(row for row in requests if begin <= row.arrival < end)
        replicas = tuple(count for count, _ in groupby(row.replicas for row in rows))
        found.append(Stage(begin, end, rows[0].users, replicas, own))
    return found


def stage_table(found: Sequence[Stage]) -> Table:
    """A row a stage; times are medians and 95th percentiles."""
    head = ("from s", "users", "replicas", "requests", "429", "failed otherwise", "TTFT ms", "p95", "TPOT ms", "p95")
    rows: list[tuple[str, ...]] = []
    for stage in found:
        answers = [row.served for row in stage.requests if row.served is not None]
        ttfts = [one.first_content for one in answers if one.first_content is not None]
        tpots = [tpot for one in answers if (tpot := one.tpot) is not None]
        counts = (len(stage.requests), stage.refused, stage.failed)
        rows.append(
            (
                f"{stage.begin:.0f}",
                str(stage.users),
                ", ".join(map(str, stage.replicas)),
                *map(str, counts),
                *_times(ttfts),
                *_times(tpots),
            )
        )
    return Table(head, rows)


def stage_tables(results: Results) -> list[str]:
    """Of each session in which replicas were watched, with the replicas that it had one after the other."""
    told: list[str] = []
    for session in results.sessions:
        fleets = [row for row in results.fleets if row.session == session.id]
        found = stages([row for row in results.requests if row.session == session.id], fleets)
        if found:
            course = [count for count, _ in groupby(count for stage in found for count in stage.replicas)]
            told.append(f"session {session.id}, {session.began}: replicas {', '.join(map(str, course))}")
            told.append(str(stage_table(found)))
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    args = parser.parse_args(arguments)
    try:
        told = stage_tables(read_results(args.rows))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    if not told:
        print(f"{args.rows} holds no load whose replicas were watched", file=sys.stderr)
        return 1
    print(*told, sep="\n\n")
    return 0


def _times(seconds: Sequence[float]) -> tuple[str, str]:
    found = percentiles_ms(seconds)
    return ("", "") if found is None else (f"{found['p50']:.0f}", f"{found['p95']:.0f}")


if __name__ == "__main__":
    sys.exit(main())
