"""The comparison of a working tree with a commit."""

import io
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import check_worker
from benchmarks.check import (
    REGRESSION,
    TOO_NOISY,
    Worker,
    checked_out,
    compare,
    comparison_table,
    exit_status,
    tasks,
)
from benchmarks.check_worker import READY, RUN, TASK
from benchmarks.measuring import Task
from benchmarks.results import Cell, Run
from benchmarks.sweep_config import SweepConfig
from replicas.errors import ConfigError
from tests.benchmarks.synthetic_machine import Machine
from tests.benchmarks.tiny_sweep import write_sweep

CONFIG = SweepConfig.model_validate({"deployment": "d", "k": [0, 2], "batch": [1, 8], "repeats": 6})


def runs(machine: Machine, seed: int = 0) -> list[Run]:
    return [machine.run(task.cell, task.repeat, answers=4, seed=seed) for task in tasks(CONFIG)]


def test_every_cell_has_a_pair_in_every_repeat() -> None:
    assert Counter(task.cell for task in tasks(CONFIG)) == {Cell(k, batch): 6 for k in (0, 2) for batch in (1, 8)}


def test_the_same_code_is_no_slower_than_itself() -> None:
    found = compare(runs(Machine(), seed=1), runs(Machine()))
    assert [one.cell for one in found] == [Cell(0, 1), Cell(2, 1), Cell(0, 8), Cell(2, 8)]
    plain = [one for one in found if one.cell.k == 0]
    assert {one.outcome for one in plain} == {"no slower"}
    assert all(one.ratio == pytest.approx(1.0, abs=0.02) for one in plain)
    assert exit_status(plain) == 0


def test_a_tenth_slower_is_a_regression() -> None:
    slow = Machine(fixed=11.0, row=0.33, stair=3.3, draft=0.88)
    found = compare(runs(slow), runs(Machine()))
    assert {one.outcome for one in found} == {"regression"}
    assert exit_status(found) == REGRESSION
    assert str(comparison_table(found)).count("regression") == 4


def test_a_loud_machine_tells_nothing() -> None:
    # Every second repeat of one side was disturbed by a third.
    loud = [
        run if run.repeat % 2 else Machine(fixed=15.0).run(run.cell, run.repeat, answers=4) for run in runs(Machine())
    ]
    found = compare(loud, runs(Machine()))
    assert {one.outcome for one in found} == {"too noisy to tell"}
    assert exit_status(found) == TOO_NOISY


def fake_revision(folder: Path, program: str) -> Path:
    """A project whose worker is `program`."""
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "__init__.py").write_text("")
    (folder / "benchmarks" / "check_worker.py").write_text(program)
    return folder


def test_a_worker_runs_the_code_of_its_folder_on_the_tasks_that_it_gets(tmp_path: Path) -> None:
    run = Machine().run(Cell(2, 8), 3, answers=1, tokens=3)
    answer = RUN.dump_json(run).decode()
    code = f"""import sys
print("ready", flush=True)
for line in sys.stdin:
    assert '"batch":8' in line and sys.argv[1] == "sweep.yaml"
    print({answer!r}, flush=True)
"""
    worker = Worker("old", fake_revision(tmp_path, code), Path("sweep.yaml"))
    assert worker.run(Task(Cell(2, 8), 3)) == run
    assert worker.run(Task(Cell(0, 8), 4)) == run
    with pytest.raises(ConfigError, match="the engine of old ended with status 1; see above"):
        worker.run(Task(Cell(0, 1), 4))
    worker.close()


def test_a_revision_without_a_worker_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the engine of old ended with status 3; see above"):
        Worker("old", fake_revision(tmp_path, "raise SystemExit(3)"), Path("sweep.yaml"))


def test_the_worker_answers_tasks_until_its_input_ends(
    tmp_path: Path, tiny_folder: Path, tiny_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sweep(tmp_path, tiny_folder, tiny_head, max_tokens=4)
    given, told = io.BytesIO(TASK.dump_json(Task(Cell(2, 2), 1)) + b"\n"), io.BytesIO()
    monkeypatch.setattr(sys, "argv", ["check_worker", str(path)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(given))
    text = io.TextIOWrapper(told)
    monkeypatch.setattr(sys, "stdout", text)
    check_worker.main()
    ready, line = told.getvalue().splitlines(keepends=True)
    assert ready == READY
    run = RUN.validate_json(line)
    assert (run.cell, run.repeat, len(run.trace.answers)) == (Cell(2, 2), 1, 4)
    assert run.acceptance.drafted > 0


def test_a_revision_that_is_none_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="--base is 'nowhere', which git cannot check out: "), checked_out("nowhere"):
        pass
