"""How often the draft at each position is accepted, whatever the batch."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.fit.bootstrap import Floats, Indices, Interval, interval
from benchmarks.results import Run
from replicas.request import Acceptance


@dataclass(frozen=True, slots=True)
class PositionAcceptance:
    """Share of the steps whose drafts up to a position were all accepted; it never increases with the position."""

    rates: tuple[float, ...]
    """Of positions 1, 2, ..."""
    intervals: tuple[Interval, ...]
    """95 %, over answers."""

    def mean_length(self, k: int) -> float:
        """The exact expectation of the tokens a step at K: 1 + the sum of the rates up to K."""
        return 1.0 + sum(self.rates[:k])

    def rate(self, k: int) -> float:
        """alpha: accepted over drafted at K; 0 for K = 0."""
        return sum(self.rates[:k]) / k if k else 0.0


def fit_acceptance(runs: Iterable[Run]) -> PositionAcceptance:
    """Pooled over all runs that drafted so far: a position's fate depends neither on the batch nor on what follows it.

    An answer is one unit of the bootstrap: its steps are alike.
    """
    drafted: dict[int, list[Acceptance]] = {}
    for run in runs:
        for answer in run.trace.answers:
            for position in range(run.cell.k or 0):
                drafted.setdefault(position, []).append(answer.acceptance)
    rates: list[float] = []
    intervals: list[Interval] = []
    for position in range(len(drafted)):
        units = drafted[position]
        accepted = np.array([(*unit.accepted_by_position, *[0] * (position + 1))[position] for unit in units])
        steps = np.array([unit.steps for unit in units])
        rate = float(accepted.sum() / max(steps.sum(), 1))
        # Pools differ a little from position to position; the truth does not increase.
        rates.append(min(rate, *rates) if rates else rate)

        def share(index: Indices, accepted: Floats = accepted, steps: Floats = steps) -> Floats:
            return accepted[index].sum(-1) / np.maximum(steps[index].sum(-1), 1)

        intervals.append(interval(share, (len(units),)))
    return PositionAcceptance(tuple(rates), tuple(intervals))
