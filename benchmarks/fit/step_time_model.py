"""A model of T(batch, K) for cells that were not measured, and how far it is off on cells that it did not see.

A verify step reads the weights once and then pays for rows, batch x (1 + K). Kernels and compiled shapes work on
whole blocks of rows, so cost also rises in stairs; how wide they are depends on the machine and is fitted. A draft
step refreshes the drafter's KV at those rows and then runs K - 1 times over the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

import numpy as np
from scipy.optimize import nnls  # pyright: ignore[reportMissingTypeStubs]

from benchmarks.fit.bootstrap import Floats
from benchmarks.fit.step_costs import StepCost

STAIRS = (1, 2, 3, 4, 6, 8, 12, 14, 16, 24, 32)
"""Widths that are tried, in rows."""
FEWEST_CELLS = 8
"""Below it there are as many coefficients as cells."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One cell, predicted from all the others."""

    cost: StepCost
    predicted: float
    """Seconds."""

    @property
    def error(self) -> float:
        """Relative to the measurement."""
        return self.predicted / self.cost.seconds - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class StepTimeModel:
    """Seconds of a step, as non-negative sums."""

    stair: int
    """Rows of a block."""
    verify: Floats
    draft: Floats

    def seconds(self, batch: int, k: int, mean_context: float) -> float:
        """T(batch, K)."""
        verify = self.verify_seconds(batch, k, mean_context)
        return verify + float(_draft_terms(batch, k) @ self.draft)

    def verify_seconds(self, batch: int, k: int, mean_context: float) -> float:
        """T without drafting."""
        return float(_verify_terms(batch, k, mean_context, self.stair) @ self.verify)


def fit_step_time(costs: Sequence[StepCost]) -> StepTimeModel:
    """Least squares of relative errors over `costs`, with the stair that fits best."""
    draft = _solve([_draft_terms(*_batch_k(cost)) for cost in costs], [cost.draft_seconds for cost in costs])
    fits: list[tuple[float, int, Floats]] = []
    for stair in STAIRS:
        terms = [_verify_terms(*_batch_k(cost), cost.mean_context, stair) for cost in costs]
        seconds = [cost.verify_seconds for cost in costs]
        verify = _solve(terms, seconds)
        errors = np.stack(terms) @ verify / np.array(seconds) - 1.0
        fits.append((float(np.square(errors).sum()), stair, verify))
    _, stair, verify = min(fits, key=lambda fit: fit[:2])
    return StepTimeModel(stair, verify, draft)


def held_out(costs: Sequence[StepCost]) -> list[HeldOut]:
    """Each cell predicted by a model of the others, stair and all; empty if there are too few."""
    if len(costs) <= FEWEST_CELLS:
        return []
    found: list[HeldOut] = []
    for index, cost in enumerate(costs):
        model = fit_step_time([*costs[:index], *costs[index + 1 :]])
        found.append(HeldOut(cost, model.seconds(*_batch_k(cost), cost.mean_context)))
    return found


def median_error(cells: Sequence[HeldOut]) -> float:
    """Of the absolute relative errors."""
    return median(abs(cell.error) for cell in cells)


def _batch_k(cost: StepCost) -> tuple[int, int]:
    assert cost.cell.k is not None, "cells of a schedule have no single K"
    return cost.cell.batch, cost.cell.k


def _verify_terms(batch: int, k: int, mean_context: float, stair: int) -> Floats:
    rows = batch * (1 + k)
    # A lone sequence may be attended in place; several are gathered.
    return np.array([1.0, rows, ceil(rows / stair), batch, float(batch > 1), batch * mean_context])


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
