"""A ramp's stages, of hand-made rows."""

from pathlib import Path

import pytest

from benchmarks.load.ramp import Ramp
from benchmarks.load.stages import fleet_rows, main, stage_table, stages
from benchmarks.results import Fleet, HttpRequest, Served, Session, append_rows, read_results

SESSION = Session("s1", "2026-01-01T00:00:00.250+00:00", "abc", "tiny", "unknown", None, {"load": "{}"}, "http")
RAMP = Ramp(peak=4, steps=1, step_s=10, hold_s=20, quiet_s=10)
SEEN = [(-5.0, 1), (14.0, 2), (18.0, 3), (35.5, 2), (44.0, 1)]
FLEETS = [
    Fleet("s1", 0.0, 1, 1),
    Fleet("s1", 10.0, 4, 1),
    Fleet("s1", 14.0, 4, 2),
    Fleet("s1", 18.0, 4, 3),
    Fleet("s1", 30.0, 1, 3),
    Fleet("s1", 35.5, 1, 2),
    Fleet("s1", 40.0, 0, 2),
]


def row(arrival: float, served: Served | None, failure: str | None = None) -> HttpRequest:
    return HttpRequest("s1", arrival, "closed", 1, True, "code", served, failure)


def answer(ttft: float, tpot: float) -> Served:
    return Served(ttft, ttft + 10 * tpot, (ttft, ttft + 10 * tpot), 11, 7, None)


REQUESTS = [
    row(0.0, answer(0.1, 0.01)),
    row(9.9, answer(0.3, 0.03)),
    row(10.0, answer(2.0, 0.05)),
    row(12.0, None, "HTTP 429: too many"),
    row(13.0, None, "HTTP 503: no"),
    row(31.0, None, "not finished when the load ended"),
    row(40.5, answer(9.0, 0.9)),
]


def test_a_row_at_each_change_of_users_or_replicas_while_there_is_a_load() -> None:
    assert fleet_rows("s1", RAMP, SEEN) == FLEETS


def test_replicas_that_were_first_seen_late_were_there_before() -> None:
    assert fleet_rows("s1", RAMP, [(3.0, 2)])[0] == Fleet("s1", 0.0, 1, 2)


def test_requests_belong_to_the_stage_in_which_they_were_sent() -> None:
    quiet, peak, after = stages(REQUESTS, FLEETS)
    assert [(one.begin, one.end, one.users) for one in (quiet, peak, after)] == [(0, 10, 1), (10, 30, 4), (30, 40, 1)]
    assert [one.replicas for one in (quiet, peak, after)] == [(1,), (1, 2, 3), (3, 2)]
    assert [len(one.requests) for one in (quiet, peak, after)] == [2, 3, 1]
    assert [(one.refused, one.failed) for one in (quiet, peak, after)] == [(0, 0), (1, 1), (0, 1)]


def test_the_table_has_no_time_where_nothing_was_answered() -> None:
    quiet, peak, after = stage_table(stages(REQUESTS, FLEETS)).rows
    assert quiet == ("0", "1", "1", "2", "0", "0", "200", "290", "20", "29")
    assert peak == ("10", "4", "1, 2, 3", "3", "1", "1", "2000", "2000", "50", "50")
    assert after == ("30", "1", "3, 2", "1", "0", "1", "", "", "", "")


def test_rows_come_back_and_are_told_by_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [SESSION, *REQUESTS, *FLEETS])
    assert read_results(path).fleets == tuple(FLEETS)
    assert main([str(path)]) == 0
    told = capsys.readouterr().out
    assert "session s1, 2026-01-01T00:00:00.250+00:00: replicas 1, 2, 3, 2\n" in told
    assert "| 10 | 4 | 1, 2, 3 | 3 | 1 | 1 |" in told


def test_a_load_without_a_watch_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [SESSION, *REQUESTS])
    assert main([str(path)]) == 1
    assert capsys.readouterr().err == f"{path} holds no load whose replicas were watched\n"
