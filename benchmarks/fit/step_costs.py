"""What a decode step costs in each measured cell: T(batch, K), and the drafter's part of it."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import trim_mean  # pyright: ignore[reportMissingTypeStubs]

from benchmarks.fit.bootstrap import Floats, Indices, Interval, interval
from benchmarks.results import Cell, Run

BLOCK_STEPS = 16
"""Neighbouring steps are alike (one prompt, one moment), so the bootstrap draws them in blocks."""
TRIMMED = 0.05
"""Share of the fastest and of the slowest steps that the mean leaves out: what else the machine did then."""


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """The steps of one cell that decoded a full batch and prefilled nothing, over all repeats."""

    cell: Cell
    seconds: float
    """T: trimmed mean."""
    draft_seconds: float
    """The drafter's part, trimmed alike. At K = 0 it keeps its KV up to date."""
    tokens: float
    """A sequence and step; at most 1 + K."""
    mean_context: float
    """Tokens of a sequence, half-way through its answer."""
    block_seconds: Floats
    """[blocks]: mean seconds a step of each block."""
    block_tokens: Floats
    """[blocks]: mean tokens a sequence and step."""
    interval: Interval
    """Of `seconds`."""

    @property
    def verify_seconds(self) -> float:
        """All but drafting: the target's forward, rejection, and the host's part."""
        return self.seconds - self.draft_seconds

    @property
    def tpot(self) -> float:
        """Seconds an output token of one sequence, from decode steps alone."""
        return self.seconds / self.tokens


def fit_step_costs(runs: Iterable[Run]) -> dict[Cell, StepCost]:
    """By cell; cells without a single full step are left out."""
    by_cell: dict[Cell, list[Run]] = {}
    for run in runs:
        by_cell.setdefault(run.cell, []).append(run)
    return {cell: _cost(cell, of_cell) for cell, of_cell in by_cell.items() if any(r.trace.steps for r in of_cell)}


def _cost(cell: Cell, runs: list[Run]) -> StepCost:
    steps = np.array([step for run in runs for step in run.trace.steps], dtype=np.float64)
    blocks = [
        np.array(run.trace.steps[start : start + BLOCK_STEPS], dtype=np.float64).mean(axis=0)
        for run in runs
        for start in range(0, len(run.trace.steps), BLOCK_STEPS)
    ]
    seconds, _, tokens = np.stack(blocks).T
    answers = [answer for run in runs for answer in run.trace.answers]

    def mean(index: Indices) -> Floats:
        return seconds[index].mean(-1)

    return StepCost(
        cell,
        float(trim_mean(steps[:, 0], TRIMMED)),
        float(trim_mean(steps[:, 1], TRIMMED)),
        float(steps[:, 2].mean() / cell.batch),
        float(np.mean([answer.num_prompt_tokens + len(answer.token_ids) / 2 for answer in answers])),
        seconds,
        tokens / cell.batch,
        interval(mean, (len(seconds),)),
    )
