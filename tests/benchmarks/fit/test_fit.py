"""The fit finds the machine that made the rows."""

from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from benchmarks.fit.__main__ import main
from benchmarks.fit.bootstrap import interval
from benchmarks.fit.fit import Fit, fit_sweep
from benchmarks.fit.speedup import expected_speedup, simple_speedup
from benchmarks.results import Cell, Results, Run, append_row
from replicas.errors import ConfigError
from tests.benchmarks.synthetic_machine import SESSION, Machine

MACHINE = Machine()
DRIFT = 1.1
"""Of the three repeats, in the mean."""


@pytest.fixture(scope="module")
def fit() -> Fit:
    return fit_sweep(MACHINE.sweep())


def test_the_simple_formula_is_the_seeds() -> None:
    assert simple_speedup(3, 0.5, 0.1) == 2.5 / 1.3
    assert simple_speedup(0, 0.0, 0.1) == 1.0


def test_the_expectation_divides_tokens_by_time() -> None:
    assert expected_speedup(1.9, 0.020, 0.025) == pytest.approx(1.9 * 0.8)


def test_an_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    chance = np.random.default_rng(1)
    held = 0
    for _ in range(60):
        values = chance.normal(5.0, 2.0, 40)
        low, high = interval(lambda index, values=values: values[index].mean(-1), (40,), seed=3)
        held += low < 5.0 < high
    assert 51 <= held <= 60


def test_one_unit_tells_nothing_about_the_spread() -> None:
    assert interval(lambda index: index.mean(-1), (1,)) == (-np.inf, np.inf)


def test_acceptance_by_position(fit: Fit) -> None:
    assert len(fit.acceptance.rates) == 5
    for rate, (low, high), true in zip(fit.acceptance.rates, fit.acceptance.intervals, MACHINE.rates(), strict=True):
        assert rate == pytest.approx(true, abs=0.02)
        assert low - 0.01 < true < high + 0.01
        assert high - low < 0.06
    assert list(fit.acceptance.rates) == sorted(fit.acceptance.rates, reverse=True)
    assert fit.acceptance.mean_length(2) == pytest.approx(1 + 0.6 + 0.3, abs=0.03)
    assert fit.acceptance.rate(2) == pytest.approx(0.45, abs=0.015)


def test_cost_of_a_step_and_its_parts(fit: Fit) -> None:
    for cell, cost in fit.costs.items():
        assert cell.k is not None
        assert cost.seconds == pytest.approx(1e-3 * DRIFT * MACHINE.step_ms(cell.batch, cell.k), rel=0.01)
        assert cost.draft_seconds == pytest.approx(1e-3 * DRIFT * MACHINE.draft_ms(cell.k), rel=0.01)
        assert cost.verify_seconds == cost.seconds - cost.draft_seconds
        low, high = cost.interval
        assert low < cost.seconds < high


def test_what_else_the_machine_did_counts_neither_for_a_cost_nor_for_its_interval() -> None:
    quiet = MACHINE.sweep([0, 1], [2], repeats=2)
    disturbed: list[Run] = []
    for run in quiet.runs:
        steps = [(9 * s, d, n) if index % 30 == 0 else (s, d, n) for index, (s, d, n) in enumerate(run.trace.steps)]
        disturbed.append(replace(run, trace=replace(run.trace, steps=steps)))
    costs = fit_sweep(Results(quiet.sessions, tuple(disturbed))).costs
    for cell, cost in fit_sweep(quiet).costs.items():
        assert costs[cell].seconds == pytest.approx(cost.seconds, rel=0.02)
        assert costs[cell].interval.low < costs[cell].seconds < costs[cell].interval.high < 1.1 * cost.seconds


def test_the_expectation_is_right_and_the_simple_formula_is_not(fit: Fit) -> None:
    for cell, speedup in fit.speedups.items():
        assert cell.k is not None
        true = MACHINE.tpot_ms(cell.batch, 0) / MACHINE.tpot_ms(cell.batch, cell.k)
        assert speedup.measured == pytest.approx(true, rel=0.08)
        assert speedup.answers == pytest.approx(true, rel=0.12)
        if cell.k:
            assert speedup.interval.low - 0.02 < true < speedup.interval.high + 0.02
            assert speedup.interval.high - speedup.interval.low < 0.3
    errors = [abs(speedup.expected_error) for speedup in fit.speedups.values()]
    assert mean(errors) < 0.03
    # It takes verifying K tokens more to cost nothing: nearly true of one sequence, far from it in a batch.
    assert abs(fit.speedups[Cell(1, 1)].simple_error) < 0.05
    wide = fit.speedups[Cell(5, 8)]
    assert wide.simple_error > 1.0
    assert fit.speedups[Cell(0, 4)].measured == fit.speedups[Cell(0, 4)].expected == 1.0


def test_rows_of_a_schedule_are_left_to_the_verification() -> None:
    results = MACHINE.sweep([0, 2], [1], repeats=1)
    scheduled = MACHINE.run(Cell(None, 1), 0)
    assert list(fit_sweep(Results(results.sessions, (*results.runs, scheduled))).costs) == [Cell(0, 1), Cell(2, 1)]


def test_without_plain_decoding_there_is_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, match="no cell with K = 0"):
        fit_sweep(MACHINE.sweep([1, 2], [1], repeats=1))


def test_the_command_prints_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, SESSION)
    for run in MACHINE.sweep([0, 1, 2], [1, 2, 4], repeats=2).runs:
        append_row(path, run)
    assert main([str(path)]) == 0
    told = capsys.readouterr().out
    assert "| position | accepted up to it | 95 % | tokens a step with K = position |" in told
    assert "\n| all | 9 | " in told
    assert told.count("\n| 4 | 2 |") == 2
    assert main([str(tmp_path / "none.jsonl")]) == 1
    assert "no cell with K = 0" in capsys.readouterr().err
