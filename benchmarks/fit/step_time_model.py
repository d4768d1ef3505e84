"""A model of T(batch, K) for cells that were not measured.

A verify step reads the weights once and then pays for rows, batch x (1 + K). While the weights are read, the first
few rows are computed for nothing: the demo's step takes 17.5 ms at one row and 17.4 ms at two. Kernels and compiled
shapes work on whole blocks of rows, so cost also rises in stairs. How many rows are free and how wide the stairs are
depends on the machine and is fitted. A draft step refreshes the drafter's KV at those rows and then runs K - 1 times
over the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil

import numpy as np
from scipy.optimize import nnls  # pyright: ignore[reportMissingTypeStubs]

from benchmarks.fit.bootstrap import Floats
from benchmarks.fit.step_costs import StepCost

STAIRS = (1, 2, 3, 4, 6, 8, 12, 14, 16, 24, 32)
"""Widths that are tried, in rows."""
FREE_ROWS = (0, 2, 3, 4, 6)
"""Numbers of free rows that are tried. One is as none: the constant holds the first row."""


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeModel:
    """Seconds of a step, as non-negative sums."""

    stair: int
    """Rows of a block."""
    free_rows: int
    """That cost nothing beside reading the weights."""
    verify: Floats
    draft: Floats

    def seconds(self, batch: int, k: int, mean_context: float) -> float:
        """T(batch, K)."""
        verify = self.verify_seconds(batch, k, mean_context)
        return verify + float(_draft_terms(batch, k) @ self.draft)

    def verify_seconds(self, batch: int, k: int, mean_context: float) -> float:
        """T without drafting."""
        return float(_verify_terms(batch, k, mean_context, self.stair, self.free_rows) @ self.verify)


def fit_step_time(costs: Sequence[StepCost]) -> StepTimeModel:
    """Least squares of relative errors over `costs`, with the stair and the free rows that fit best."""
    draft = _solve([_draft_terms(*batch_and_k(cost)) for cost in costs], [cost.draft_seconds for cost in costs])
    fits: list[tuple[float, int, int, Floats]] = []
    for stair, free_rows in product(STAIRS, FREE_ROWS):
        terms = [_verify_terms(*batch_and_k(cost), cost.mean_context, stair, free_rows) for cost in costs]
        seconds = [cost.verify_seconds for cost in costs]
        verify = _solve(terms, seconds)
        errors = np.stack(terms) @ verify / np.array(seconds) - 1.0
        fits.append((float(np.square(errors).sum()), stair, free_rows, verify))
    _, stair, free_rows, verify = min(fits, key=lambda fit: fit[:3])
    return StepTimeModel(stair, free_rows, verify, draft)


def batch_and_k(cost: StepCost) -> tuple[int, int]:
    """Of its cell, which must not be a schedule's."""
    assert cost.cell.k is not None, "cells of a schedule have no single K"
    return cost.cell.batch, cost.cell.k


def _verify_terms(batch: int, k: int, mean_context: float, stair: int, free_rows: int) -> Floats:
    rows = batch * (1 + k)
    # A lone sequence may be attended in place; several are gathered.
    return np.array([1.0, max(rows - free_rows, 0), ceil(rows / stair), batch, float(batch > 1), batch * mean_context])


def _draft_terms(batch: int, k: int) -> Floats:
    again = max(k - 1, 0)
    return np.array([1.0, batch * (1 + k), float(k > 0), batch * float(k > 0), again, again * batch])


def _solve(terms: Sequence[Floats], seconds: Sequence[float]) -> Floats:
    weights = 1.0 / np.maximum(np.array(seconds), 1e-9)
    # Columns to a common scale, for the solver's tolerance.
    matrix = np.stack(terms) * weights[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-30)
    solution, _ = nnls(matrix / scale, np.ones(len(seconds)))
    return solution / scale
