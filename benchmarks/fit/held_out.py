"""How far the model of T(batch, K) is off on cells that it did not see: each is left out, and predicted from the rest.

A cell at an edge of the grid (the smallest or largest batch or K that was measured) has neighbours on one side alone.
Predicting it is extrapolation, so these cells are counted apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.fit.step_costs import StepCost
from benchmarks.fit.step_time_model import batch_and_k, fit_step_time

FEWEST_CELLS = 8
"""Below it there are as many coefficients as cells."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One cell, predicted from all the others."""

    cost: StepCost
    predicted: float
    """Seconds."""
    is_edge: bool
    """Its batch or K is the smallest or largest of its context's cells."""

    @property
    def error(self) -> float:
        """Relative to the measurement."""
        return self.predicted / self.cost.seconds - 1.0


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute relative errors of some cells, one at least."""

    cells: tuple[HeldOut, ...]

    @property
    def median(self) -> float:
        """Of all."""
        return median(abs(cell.error) for cell in self.cells)

    @property
    def worst(self) -> HeldOut:
        """The cell with the largest."""
        return max(self.cells, key=lambda cell: abs(cell.error))

    def within(self, limit: float) -> int:
        """Cells whose error is at most `limit`."""
        return sum(abs(cell.error) <= limit for cell in self.cells)


def held_out(costs: Sequence[StepCost]) -> list[HeldOut]:
    """Each cell predicted by a model of the others, their stairs and free rows too; empty if there are too few."""
    if len(costs) <= FEWEST_CELLS:
        return []
    found: list[HeldOut] = []
    for index, cost in enumerate(costs):
        model = fit_step_time([*costs[:index], *costs[index + 1 :]])
        predicted = model.seconds(*batch_and_k(cost), cost.mean_context)
        found.append(HeldOut(cost, predicted, _is_edge(cost, costs)))
    return found


def _is_edge(cost: StepCost, costs: Sequence[StepCost]) -> bool:
    alike = [batch_and_k(one) for one in costs if one.cell.context_tokens == cost.cell.context_tokens]
    batch, k = batch_and_k(cost)
    batches, ks = [of for of, _ in alike], [of for _, of in alike]
    return batch in (min(batches), max(batches)) or k in (min(ks), max(ks))
