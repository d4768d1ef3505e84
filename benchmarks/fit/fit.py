"""Everything that a sweep's rows tell."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fit.acceptance import PositionAcceptance, fit_acceptance
from benchmarks.fit.held_out import HeldOut, held_out
from benchmarks.fit.speedup import Speedup, fit_speedup
from benchmarks.fit.step_costs import StepCost, fit_step_costs
from benchmarks.fit.step_time_model import StepTimeModel, fit_step_time
from benchmarks.results import Cell, Results, Run, Session
from replicas.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Figures of one sweep."""

    sessions: tuple[Session, ...]
    acceptance: PositionAcceptance
    costs: dict[Cell, StepCost]
    """By cell, ordered by context, batch and K."""
    speedups: dict[Cell, Speedup]
    """The same cells; K = 0 is 1 by definition."""
    model: StepTimeModel
    held_out: tuple[HeldOut, ...]

    @property
    def contexts(self) -> list[int | None]:
        """Context lengths that were measured."""
        return list(dict.fromkeys(cell.context_tokens for cell in self.costs))

    @property
    def batches(self) -> list[int]:
        """Ascending."""
        return sorted({cell.batch for cell in self.costs})

    @property
    def ks(self) -> list[int]:
        """Ascending."""
        return sorted({cell.k for cell in self.costs if cell.k is not None})


def fit_sweep(results: Results) -> Fit:
    """Raises ConfigError if there is nothing to compare."""
    runs = [run for run in results.runs if run.cell.k is not None]
    costs = fit_step_costs(runs)
    ordered = sorted(costs, key=lambda cell: (cell.context_tokens or 0, cell.batch, cell.k or 0))
    comparable = [cell for cell in ordered if _plain(cell) in costs]
    if not comparable:
        raise ConfigError("the rows hold no cell with K = 0 and full steps; measure some first")
    acceptance = fit_acceptance(runs)
    known = {cell: costs[cell] for cell in comparable}
    return Fit(
        results.sessions,
        acceptance,
        known,
        {cell: fit_speedup(known[cell], known[_plain(cell)], acceptance, _of_batch(runs, cell)) for cell in known},
        fit_step_time(list(known.values())),
        tuple(held_out(list(known.values()))),
    )


def _plain(cell: Cell) -> Cell:
    return Cell(0, cell.batch, cell.context_tokens)


def _of_batch(runs: Sequence[Run], cell: Cell) -> list[Run]:
    return [run for run in runs if (run.cell.batch, run.cell.context_tokens) == (cell.batch, cell.context_tokens)]
