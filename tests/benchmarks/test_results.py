"""The file of rows."""

from pathlib import Path

import pytest

from benchmarks.engine_client import EngineAnswer, LoopTrace, StepTime
from benchmarks.metrics import AnswerTrace, Chunk
from benchmarks.results import Cell, Run, Session, append_row, read_results
from replicas.errors import ConfigError
from replicas.request import Acceptance

SESSION = Session("s1", "2026-01-01T00:00:00+00:00", "abc", "tiny", "cpu", "eagle3", {"machine": "m"})


def answer(*chunks: Chunk) -> EngineAnswer:
    return EngineAnswer(AnswerTrace(chunks), (1, 2, 3), Acceptance(1, 2, 1, (1,)), 7, "stop")


RUN = Run(
    "s1",
    Cell(2, 2),
    1,
    LoopTrace(
        2.0,
        (answer(Chunk(0.25, 1, True), Chunk(1.25, 2, True)), answer(Chunk(0.5, 1, True))),
        (0.0, 0.5),
        (StepTime(0.3, 0.1, 4),),
    ),
    ("a", "b"),
)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    for row in (SESSION, RUN):
        append_row(path, row)
    assert read_results(path).sessions == (SESSION,)
    assert read_results(path).runs == (RUN,)
    assert read_results(path).done == {(Cell(2, 2), 1)}


def test_figures_of_a_run() -> None:
    assert RUN.tpots == [0.5, None]
    assert RUN.acceptance == Acceptance(2, 4, 2, (2,))
    # Tokens at 0.25 s, 1.0 s and 1.25 s.
    assert (RUN.throughput.average, RUN.throughput.peak) == (2.0, 3.0)


def test_an_interrupted_line_does_not_count_and_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, SESSION)
    path.write_bytes(path.read_bytes() + b'{"session"')
    assert read_results(path).sessions == (SESSION,)
    append_row(path, RUN)
    assert read_results(path).runs == (RUN,)


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none").runs == ()


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, SESSION)
    path.write_text(path.read_text() + '{"kind": "run", "session": "s1"}\n')
    with pytest.raises(ConfigError, match=r"rows.jsonl, line 2 is no row of measurements: run.cell: Field required"):
        read_results(path)
