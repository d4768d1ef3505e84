"""The verification of a schedule."""

from pathlib import Path

import pytest

from benchmarks.measuring import UNFINISHED
from benchmarks.results import Cell, Run, read_results
from benchmarks.sweep_config import SweepConfig
from benchmarks.verify_k_schedule import SLOWER, main, verdict_table, verdicts, verification_tasks
from tests.benchmarks.synthetic_machine import Machine
from tests.benchmarks.tiny_sweep import write_sweep
from tests.serve_app.k_schedules import schedule, write_schedule

CONFIG = SweepConfig.model_validate({"deployment": "d", "k": [0, 1], "batch": [1, 4]})


def rows(scheduled: Machine, plain: Machine, repeats: int = 5) -> list[Run]:
    """Runs of K = 0 and K = 2 on one machine, of the schedule on another."""
    found: list[Run] = []
    for repeat in range(repeats):
        for batch in (1, 4):
            found += [plain.run(Cell(k, batch), repeat) for k in (0, 2)]
            found.append(scheduled.run(Cell(None, batch), repeat))
    return found


def test_the_three_stand_side_by_side_in_a_random_order() -> None:
    tasks = verification_tasks(CONFIG, 1, 5)
    assert len(tasks) == 5 * 2 * 3
    triples = [tasks[start : start + 3] for start in range(0, len(tasks), 3)]
    for triple in triples:
        assert len({(task.cell.batch, task.repeat) for task in triple}) == 1
        assert {task.cell.k for task in triple} == {0, 1, None}
    assert len({tuple(task.cell.k for task in triple) for triple in triples}) > 2
    assert {task.cell.k for task in verification_tasks(CONFIG, 0, 4)} == {0, None}


def test_a_schedule_that_is_like_k_0_holds() -> None:
    found = verdicts(rows(Machine(noise=0.1), Machine(noise=0.1)), schedule())
    assert [verdict.batch for verdict in found] == [1, 4]
    assert [verdict.k for verdict in found] == [3, 1]
    assert not any(verdict.is_slower for verdict in found)
    assert found[0].to_plain == pytest.approx(1.0, abs=0.05)
    assert found[0].to_plain_interval.low <= found[0].to_plain <= found[0].to_plain_interval.high
    # K = 2 is faster than K = 0 on this machine, and so than the schedule.
    assert found[0].to_fixed > 1.2


def test_a_schedule_that_loses_beyond_the_noise_is_found() -> None:
    found = verdicts(rows(Machine(fixed=11.0, noise=0.1), Machine(noise=0.1)), schedule())
    assert all(verdict.is_slower for verdict in found)
    assert "| 4 | as is | 1 | 1.0" in str(verdict_table(found))
    assert "slower than K = 0" in str(verdict_table(found))


def test_a_loss_within_the_noise_is_none() -> None:
    # One repeat of five was no slower, so the interval reaches below 1.
    runs = rows(Machine(fixed=10.4), Machine())
    quick = [Machine(fixed=9.5).run(Cell(None, batch), 4) for batch in (1, 4)]
    runs = [run for run in runs if run.cell.k is not None or run.repeat != 4] + quick
    assert not any(verdict.is_slower for verdict in verdicts(runs, schedule()))


def test_the_command_fails_for_a_schedule_that_loses(
    tmp_path: Path, tiny_folder: Path, tiny_head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Eight drafts of a random head, one after another, are accepted about never and take several times a step.
    sweep = write_sweep(tmp_path, tiny_folder, tiny_head, k=[0, 8], batch=[1], max_tokens=24, min_prompts=2)
    bad = write_schedule(tmp_path / "bad.yaml", buckets=[{"from_batch": 1, "k": 8}], best_fixed_k=0)
    command = [str(sweep), str(bad), "--out", str(tmp_path / "rows.jsonl"), "--repeats", "4"]
    assert main([*command, "--minutes", "0"]) == UNFINISHED
    assert main(command) == SLOWER
    assert "| 1 | as is | 8 | " in capsys.readouterr().out
    runs = read_results(tmp_path / "rows.jsonl").runs
    assert {run.cell.k for run in runs} == {0, None}
    assert all(run.acceptance.drafted > 0 for run in runs if run.cell.k is None)
    # The same command has nothing to measure any more, and the same verdict.
    assert main(command) == SLOWER
    assert len(read_results(tmp_path / "rows.jsonl").runs) == len(runs) == 8


def test_too_few_repeats_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["a.yaml", "b.yaml", "--repeats", "2"])
    assert "--repeats is 2; allowed: 4 or more" in capsys.readouterr().err
