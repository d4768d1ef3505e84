"""What a decode step costs in each measured cell: T(batch, K), and the drafter's part of it."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.fit.bootstrap import Floats, Indices, Interval, interval
from benchmarks.results import Cell, Run

BLOCK_STEPS = 16
"""Neighbouring steps are alike (one prompt, one moment), so the bootstrap draws them in blocks."""
CLIPPED = 0.05
"""Share of the fastest and of the slowest steps that count as the next one to them: what else the machine did then."""


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """The steps of one cell that decoded a full batch and prefilled nothing, over all repeats."""

    cell: Cell
    seconds: float
    """T: mean, outliers clipped."""
    draft_seconds: float
    """The drafter's part, clipped alike. At K = 0 it keeps its KV up to date."""
    tokens: float
    """A sequence and step; at most 1 + K."""
    mean_context: float
    """Tokens of a sequence, half-way through its answer."""
    block_seconds: Floats
    """[blocks]: mean seconds a step of each block, clipped alike."""
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
    steps = _clipped(np.array([step for run in runs for step in run.trace.steps], dtype=np.float64))
    of_runs = np.split(steps, np.cumsum([len(run.trace.steps) for run in runs[:-1]]))
    blocks = [
        of_run[start : start + BLOCK_STEPS].mean(axis=0)
        for of_run in of_runs
        for start in range(0, len(of_run), BLOCK_STEPS)
    ]
    seconds, _, tokens = np.stack(blocks).T
    answers = [answer for run in runs for answer in run.trace.answers]

    def mean(index: Indices) -> Floats:
        return seconds[index].mean(-1)

    return StepCost(
        cell,
        float(steps[:, 0].mean()),
        float(steps[:, 1].mean()),
        float(steps[:, 2].mean() / cell.batch),
        float(np.mean([answer.num_prompt_tokens + len(answer.token_ids) / 2 for answer in answers])),
        seconds,
        tokens / cell.batch,
        interval(mean, (len(seconds),)),
    )


def _clipped(steps: Floats) -> Floats:
    """`steps` [steps, (seconds, drafter's seconds, tokens)], their times within what most of them take.

    Before anything is made of them, so that a figure and its interval are of the same numbers.
    """
    times, tokens = steps[:, :2], steps[:, 2:]
    low, high = np.quantile(times, (CLIPPED, 1 - CLIPPED), axis=0)
    return np.concatenate([np.clip(times, low, high), tokens], axis=1)
