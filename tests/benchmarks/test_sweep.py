"""The sweep, over the tiny random target."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measuring
from benchmarks.measuring import INTERRUPTED, UNFINISHED, MeasuringEngine, Task, prompts_of
from benchmarks.results import Cell, read_results
from benchmarks.sweep import main, tasks
from benchmarks.sweep_config import SweepConfig
from benchmarks.workloads import Prompt
from tests.benchmarks.tiny_sweep import write_sweep


@pytest.fixture
def files(tmp_path: Path, tiny_folder: Path, tiny_head: Path) -> tuple[str, Path]:
    """A sweep's YAML, and where its rows go."""
    return str(write_sweep(tmp_path, tiny_folder, tiny_head)), tmp_path / "rows.jsonl"


def config(**changes: Any) -> SweepConfig:
    fields: dict[str, Any] = {"deployment": "d.yaml", "k": [0, 1, 3], "batch": [1, 4], "repeats": 3}
    return SweepConfig.model_validate(fields | changes)


def test_every_repeat_is_a_round_of_all_cells_in_an_order_of_its_own() -> None:
    planned = tasks(config(context_tokens=[None, 100]))
    rounds = [[task.cell for task in planned if task.repeat == repeat] for repeat in range(3)]
    assert [task.repeat for task in planned] == [0] * 12 + [1] * 12 + [2] * 12
    assert all(len(set(cells)) == 12 for cells in rounds)
    assert len({tuple(cells) for cells in rounds}) == 3
    assert rounds[0] != sorted(rounds[0], key=str)
    assert planned == tasks(config(context_tokens=[None, 100]))


def test_all_k_answer_the_same_prompts_and_repeats_answer_others() -> None:
    prompts = [Prompt("", str(index)) for index in range(40)]
    chosen = [prompts_of(config(), Task(Cell(k, 4), repeat), prompts) for repeat in range(3) for k in (0, 1, 3)]
    assert chosen[0] == chosen[1] == chosen[2]
    assert len({prompt.text for prompt in chosen[0] + chosen[3] + chosen[6]}) == 24
    assert len(prompts_of(config(), Task(Cell(0, 8), 0), prompts[:3])) == 16


def test_rows_hold_what_happened(files: tuple[str, Path]) -> None:
    path, out = files
    assert main([path, "--out", str(out)]) == 0
    results = read_results(out)
    [session] = results.sessions
    assert (session.model, session.device, session.method) == ("tiny", "cpu", "eagle3")
    assert session.provenance["machine"]
    assert len(results.runs) == len(results.done) == 8
    by_task = {(run.cell, run.repeat): run for run in results.runs}
    for batch in (1, 2):
        plain, drafted = by_task[Cell(0, batch), 0], by_task[Cell(2, batch), 0]
        texts = [[answer.token_ids for answer in run.trace.answers] for run in (plain, drafted)]
        assert texts[0] == texts[1]
        assert len(texts[0]) == max(3, 2 * batch)
    for run in results.runs:
        answers = run.trace.answers
        assert all(1 <= len(answer.token_ids) <= 5 for answer in answers)
        assert all(answer.answer.tokens == len(answer.token_ids) for answer in answers)
        assert {answer.finish_reason for answer in answers} <= {"stop", "length"}
        assert run.acceptance.drafted == 0 if run.cell.k == 0 else run.acceptance.drafted > 0
        assert run.trace.steps
        for step in run.trace.steps:
            assert run.cell.batch <= step.tokens <= run.cell.batch * (1 + (run.cell.k or 0))
            assert 0 < step.draft_seconds < step.seconds
        assert sum(step.seconds for step in run.trace.steps) < run.trace.seconds
        assert run.throughput.peak >= run.throughput.average > 0


def test_ctrl_c_keeps_what_there_is_and_the_same_command_goes_on(
    files: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = files
    real, seen = MeasuringEngine.run, Counter[str]()

    def interrupted(self: MeasuringEngine, *arguments: Any) -> Any:
        seen["runs"] += 1
        if seen["runs"] == 4:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(MeasuringEngine, "run", interrupted)
    assert main([path, "--out", str(out)]) == INTERRUPTED
    assert "holds 3 of 8 runs" in capsys.readouterr().err
    kept = read_results(out).runs
    # A crash in the middle of a line, besides.
    out.write_bytes(out.read_bytes() + b'{"session": "x", "cel')
    assert main([path, "--out", str(out)]) == 0
    results = read_results(out)
    assert results.runs[:3] == kept
    assert len(results.runs) == len(results.done) == 8
    assert len(results.sessions) == 2
    assert {run.session for run in results.runs[3:]} == {results.sessions[1].id}
    monkeypatch.setattr(measuring, "build_engine", lambda *_: pytest.fail("nothing is left to do"))
    assert main([path, "--out", str(out)]) == 0
    assert "complete: 8 runs" in capsys.readouterr().err


def test_minutes_bound_one_invocation(files: tuple[str, Path]) -> None:
    path, out = files
    assert main([path, "--out", str(out), "--minutes", "0"]) == UNFINISHED
    assert read_results(out).runs == ()


def test_rows_of_another_config_or_machine_are_not_mixed_in(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = files
    assert main([path, "--out", str(out), "--minutes", "0"]) == UNFINISHED
    changed = Path(path).with_name("changed.yaml")
    changed.write_text(Path(path).read_text().replace("max_tokens: 5", "max_tokens: 6"))
    capsys.readouterr()
    assert main([str(changed), "--out", str(out)]) == 1
    assert re.fullmatch(
        rf"{re.escape(str(out))} holds rows of another config \(hash \w+, now \w+\); name another file with --out, "
        r"or remove it\n",
        capsys.readouterr().err,
    )
    out.write_text(out.read_text().replace('"machine":"', '"machine":"another '))
    assert main([path, "--out", str(out)]) == 1
    assert "holds rows of another machine (another " in capsys.readouterr().err


def test_context_tokens_lengthen_the_prompts(tmp_path: Path, tiny_folder: Path, tiny_head: Path) -> None:
    path = write_sweep(tmp_path, tiny_folder, tiny_head, context_tokens=[None, 60], batch=[1], k=[0], repeats=1)
    assert main([str(path), "--out", str(tmp_path / "rows.jsonl")]) == 0
    lengths = {
        run.cell.context_tokens: [answer.num_prompt_tokens for answer in run.trace.answers]
        for run in read_results(tmp_path / "rows.jsonl").runs
    }
    assert max(lengths[None]) < 12
    assert min(lengths[60]) >= 60


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"k": [0, 1, 1]}, "k: [0, 1, 1] holds a value twice; allowed: distinct values"),
        ({"k": [1, 2]}, "k: [1, 2] has no 0, with which the others are compared; allowed: a list with 0"),
        ({"batch": []}, "batch: got []; List should have at least 1 item after validation, not 0"),
        ({"repeat": 2}, "repeat: unknown key; allowed: deployment, model, k, batch, context_tokens, prompts"),
        ({"prompts": "nowhere.jsonl"}, "prompts: 'nowhere.jsonl' is not a file, relative to "),
        ({"model": "huge"}, "has no model 'huge'; allowed: tiny"),
        (
            {"context_tokens": [126]},
            "context_tokens: 126 and max_tokens 5 together exceed the model's max_model_len, 128",
        ),
    ],
)
def test_a_wrong_sweep_is_one_sentence(
    tmp_path: Path,
    tiny_folder: Path,
    tiny_head: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    sentence: str,
) -> None:
    assert main([str(write_sweep(tmp_path, tiny_folder, tiny_head, **changes)), "--out", str(tmp_path / "rows")]) == 1
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_a_k_without_a_drafter_is_one_sentence(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(write_sweep(tmp_path, tiny_folder, None)), "--out", str(tmp_path / "rows")]) == 1
    assert capsys.readouterr().err == "k: got 2, but the model has no speculative_config; allowed: 0\n"
