"""Speed-up over plain decoding: measured, and as two formulas have it."""

from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.fit.acceptance import PositionAcceptance
from benchmarks.fit.bootstrap import Floats, Indices, Interval, interval
from benchmarks.fit.step_costs import StepCost
from benchmarks.results import Cell, Run


def simple_speedup(k: int, rate: float, draft_overhead: float) -> float:
    """The first seed's formula ("Acceptance Rate and Speedup"): (1 + K alpha) / (1 + K overhead).

    `draft_overhead` is the latency of one draft token over that of a target's decode step. The formula takes
    verifying 1 + K tokens to cost what decoding one does.
    """
    return (1 + k * rate) / (1 + k * draft_overhead)


def expected_speedup(mean_length: float, plain_seconds: float, seconds: float) -> float:
    """Tokens a step, from acceptance by position, times T(batch, 0) over the measured T(batch, K)."""
    return mean_length * plain_seconds / seconds


@dataclass(frozen=True, slots=True)
class Speedup:
    """One cell against K = 0 of the same batch and context; all figures are ratios, above 1 where drafting pays."""

    cell: Cell
    measured: float
    """Of TPOT in decode steps alone, by the cell's own tokens."""
    interval: Interval
    simple: float
    expected: float
    answers: float | None
    """Of TPOT as requests see it, with others' prompts in between: median over answers to the same prompts."""
    answers_interval: Interval

    @property
    def simple_error(self) -> float:
        """Relative, of the simple formula."""
        return self.simple / self.measured - 1.0

    @property
    def expected_error(self) -> float:
        """Relative, of the exact expectation."""
        return self.expected / self.measured - 1.0


def fit_speedup(cost: StepCost, plain: StepCost, acceptance: PositionAcceptance, runs: list[Run]) -> Speedup:
    """Of the cell of `cost` over that of `plain`; `runs` are all there are."""
    k = cost.cell.k or 0
    overhead = cost.draft_seconds / k / plain.seconds if k else 0.0

    def ratio(index: Indices, plain_index: Indices) -> Floats:
        own = cost.block_seconds[index].mean(-1) / cost.block_tokens[index].mean(-1)
        return plain.block_seconds[plain_index].mean(-1) / plain.block_tokens[plain_index].mean(-1) / own

    pairs = paired_tpots(runs, plain.cell, cost.cell)
    quotients = np.array([before / after for before, after in pairs])

    def middle(index: Indices) -> Floats:
        return np.median(quotients[index], axis=-1)

    return Speedup(
        cost.cell,
        plain.tpot / cost.tpot,
        interval(ratio, (len(cost.block_seconds), len(plain.block_seconds))),
        simple_speedup(k, acceptance.rate(k), overhead),
        expected_speedup(acceptance.mean_length(k), plain.seconds, cost.seconds),
        median(quotients.tolist()) if pairs else None,
        interval(middle, (len(pairs),)),
    )


def paired_tpots(runs: list[Run], first: Cell, second: Cell) -> list[tuple[float, float]]:
    """TPOT of both cells' answers to the same prompt in the same repeat."""
    by_key = {(run.cell, run.repeat): run.tpots for run in runs if run.cell in (first, second)}
    pairs: list[tuple[float, float]] = []
    for (cell, repeat), tpots in by_key.items():
        others = by_key.get((second, repeat))
        if cell == first and others is not None:
            pairs += [(a, b) for a, b in zip(tpots, others, strict=True) if a and b]
    return pairs
