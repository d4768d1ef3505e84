"""Figures of hand-made rows, and rows on the disk."""

import json
from pathlib import Path

import pytest

from benchmarks.load.summary import main, summary
from benchmarks.results import HttpRequest, Served, Session, append_rows, read_results
from replicas.request import Acceptance

LOAD = Session("s1", "2026-01-01T00:00:00+00:00", "abc", "tiny", "unknown", None, {"load": '{"url": "u"}'}, "http")


def row(arrival: float, served: Served | None, failure: str | None = None) -> HttpRequest:
    return HttpRequest("s1", arrival, "poisson", 2, True, "code", served, failure)


ROWS = [
    row(0.0, Served(0.5, 1.5, (0.5, 1.5), 11, 7, Acceptance(5, 10, 5))),
    row(1.0, Served(0.7, 3.0, (0.7, 3.0), 24, 7, Acceptance(5, 10, 9))),
    row(2.0, None, "HTTP 503: no"),
]


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    append_rows(path, [LOAD, *ROWS])
    read = read_results(path)
    assert (read.sessions, read.requests, read.runs) == ((LOAD,), tuple(ROWS), ())


def test_figures_of_a_load() -> None:
    figures = summary(ROWS)
    assert (figures["requests"], figures["failed"]) == (3, 1)
    assert figures["ttft_ms"] == {"p50": 600.0, "p95": 690.0}
    # (1.5 - 0.5) / 10 and (3.0 - 0.7) / 23.
    assert figures["tpot_ms"] == {"p50": 100.0, "p95": 100.0}
    assert figures["end_to_end_ms"] == {"p50": 2250.0, "p95": 2925.0}
    # 35 tokens until the last answer ended, 4 s after the load began.
    assert figures["tokens_a_second"] == 8.75
    assert figures["acceptance_rate"] == 0.7
    assert figures["mean_acceptance_length"] == pytest.approx(1 + 14 / 10)


def test_what_nobody_told_has_no_figure() -> None:
    figures = summary([row(0.0, Served(None, 1.5, (), 11, 7, None))])
    assert (figures["ttft_ms"], figures["tpot_ms"], figures["acceptance_rate"]) == (None, None, None)
    assert summary([ROWS[2]])["tokens_a_second"] is None


def test_a_line_a_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [LOAD, *ROWS])
    assert main([str(path)]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["session"], seen["load"], seen["requests"]) == ("s1", {"url": "u"}, 3)
    assert main([str(tmp_path / "none.jsonl")]) == 1
    assert "holds no requests" in capsys.readouterr().err
