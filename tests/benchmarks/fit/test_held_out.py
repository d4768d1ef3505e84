"""Cells that the model of T(batch, K) did not see, of a machine whose costs are known."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fit.__main__ import main
from benchmarks.fit.fit import Fit, fit_sweep
from benchmarks.fit.held_out import Errors, held_out
from benchmarks.fit.step_time_model import fit_step_time
from benchmarks.fit.tables import held_out_errors, held_out_sentence
from benchmarks.results import Cell, append_row
from tests.benchmarks.synthetic_machine import SESSION, Machine

MACHINE = Machine()
DRIFT = 1.1
"""Of the three repeats, in the mean."""
INTERIOR = {Cell(k, batch) for batch in (2, 4) for k in (1, 2, 3, 4)}


@pytest.fixture(scope="module")
def fit() -> Fit:
    return fit_sweep(MACHINE.sweep())


def test_the_model_predicts_cells_that_it_has_not_seen(fit: Fit) -> None:
    errors = Errors(fit.held_out)
    assert len(fit.held_out) == errors.within(0.1) == 24
    assert errors.median < 0.02
    for one in fit.held_out:
        true = 1e-3 * DRIFT * MACHINE.step_ms(one.cost.cell.batch, one.cost.cell.k or 0)
        assert one.predicted == pytest.approx(true, rel=0.1)
    assert (fit.model.stair, fit.model.free_rows) == (MACHINE.stair_rows, 0)
    # A batch that was never measured.
    assert fit.model.seconds(3, 2, 50) == pytest.approx(1e-3 * DRIFT * MACHINE.step_ms(3, 2), rel=0.03)
    assert fit.model.verify_seconds(3, 0, 50) == pytest.approx(
        1e-3 * DRIFT * (MACHINE.step_ms(3, 0) - MACHINE.draft_ms(0)), rel=0.03
    )


def test_rows_behind_the_reading_of_weights_are_free() -> None:
    machine = Machine(row=1.5, stair=0.0, free_rows=4, noise=0.005)
    found = fit_sweep(machine.sweep())
    assert found.model.free_rows == 4
    assert max(abs(one.error) for one in found.held_out) < 0.03
    assert "the first 4 rows are free" in held_out_sentence(found)


def test_holding_out_means_not_looking(fit: Fit) -> None:
    costs = list(fit.costs.values())
    [cell] = [cell for cell in held_out(costs) if cell.cost.cell == Cell(5, 8)]
    others = [cost for cost in costs if cost.cell != Cell(5, 8)]
    assert cell.predicted == fit_step_time(others).seconds(8, 5, cell.cost.mean_context)
    assert held_out(costs[:8]) == []


def test_edges_are_told_from_the_interior(fit: Fit) -> None:
    assert {one.cost.cell for one in fit.held_out if not one.is_edge} == INTERIOR
    rows = [row[:2] for row in held_out_errors(fit).rows]
    assert rows == [("all", "24"), ("interior", "8"), ("edge", "16")]


def test_edges_are_those_of_a_cells_own_context(fit: Fit) -> None:
    long = [
        replace(cost, cell=replace(cost.cell, context_tokens=512), mean_context=540.0)
        for cell, cost in fit.costs.items()
        if cell.batch <= 4
    ]
    found = held_out([*fit.costs.values(), *long])
    assert {one.cost.cell for one in found if not one.is_edge and one.cost.cell.context_tokens is None} == INTERIOR
    inside = {one.cost.cell for one in found if not one.is_edge and one.cost.cell.context_tokens == 512}
    assert inside == {Cell(k, 2, 512) for k in (1, 2, 3, 4)}


def test_a_cell_that_no_model_of_the_others_fits_is_shown(fit: Fit) -> None:
    planted = Cell(3, 4)
    costs = [
        replace(cost, seconds=1.5 * cost.verify_seconds + cost.draft_seconds) if cell == planted else cost
        for cell, cost in fit.costs.items()
    ]
    found = replace(fit, held_out=tuple(held_out(costs)))
    errors = Errors(found.held_out)
    assert errors.worst.cost.cell == planted
    # The others know nothing of it: what they say is what it would take without the plant.
    assert errors.worst.predicted == pytest.approx(1e-3 * DRIFT * MACHINE.step_ms(4, 3), rel=0.05)
    assert errors.within(0.1) < 24
    everywhere, interior, edge = held_out_errors(found).rows
    assert everywhere[3:5] == interior[3:5] == (f"{-errors.worst.error:.1%}", "batch 4, K 3")
    assert edge[4] != "batch 4, K 3"


def test_the_command_prints_measured_beside_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, SESSION)
    for run in MACHINE.sweep([0, 1, 2], [1, 2, 4], repeats=2).runs:
        append_row(path, run)
    assert main([str(path), "--hold-out"]) == 0
    told = capsys.readouterr().out
    assert "| batch | K | cell | measured ms | 95 % | predicted ms | error |" in told
    assert told.count(" | edge | ") == 8
    assert told.count("\n| 2 | 1 | interior | ") == 1
    assert "| held-out cells | number | median error | largest error | of | within 10% |" in told
    assert "accepted up to it" not in told


def test_too_few_cells_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, SESSION)
    for run in MACHINE.sweep([0, 1], [1, 2], repeats=2).runs:
        append_row(path, run)
    assert main([str(path), "--hold-out"]) == 0
    assert capsys.readouterr().out == "Too few cells to hold one out from the model of T(batch, K).\n"
