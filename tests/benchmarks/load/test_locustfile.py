"""Locust itself, in a process of its own (it replaces sockets and threads when it is imported), against known times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.results import HttpRequest, Results, Session, read_results
from replicas.request import Acceptance
from tests.benchmarks.load.openai_server import FIRST_S, TOKENS, OpenAiServer

LOAD = Path(__file__).parents[3] / "benchmarks" / "load"


def locust(server: OpenAiServer, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    files = (
        f"{LOAD / 'locustfile.py'},{LOAD / 'ramp_shape.py'}" if "--peak-users" in arguments else LOAD / "locustfile.py"
    )
    command = [sys.executable, "-m", "locust", "-f", str(files), "--headless", "--out", str(out)]
    with server.running():
        return subprocess.run(
            [*command, "--host", server.url, *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=os.environ | {"PYTHONPATH": str(LOAD.parents[1])},
            cwd=out.parent,
        )


def rows(ended: subprocess.CompletedProcess[str], out: Path) -> tuple[Session, tuple[HttpRequest, ...], Results]:
    assert ended.returncode == 0, ended.stderr
    results = read_results(out)
    (session,) = results.sessions
    assert results.requests
    assert all(row.session == session.id for row in results.requests)
    return session, results.requests, results


def test_closed_users_have_one_request_each_and_every_request_is_a_row(tmp_path: Path) -> None:
    server, out = OpenAiServer(), tmp_path / "rows.jsonl"
    ended = locust(server, out, "--users", "2", "--spawn-rate", "2", "--run-time", "3s", "--stop-timeout", "60")
    session, requests, _ = rows(ended, out)
    assert (session.model, session.engine) == ("tiny", "http")
    assert json.loads(session.provenance["load"])["url"] == server.url
    assert len(requests) == len(server.bodies)
    assert {body["messages"][0]["content"] for body in server.bodies[:2]} != {
        server.bodies[0]["messages"][0]["content"]
    }
    for row in requests:
        assert row.failure is None
        assert row.served is not None
        assert row.served.first_content is not None
        assert row.served.first_content >= FIRST_S
        assert (row.served.tokens, row.served.acceptance) == (TOKENS, Acceptance(4, 12, 8))
        assert (row.arrivals, row.streamed) == ("closed", True)
    # Never more than two at once.
    spans = [(row.arrival, row.arrival + row.served.end_to_end) for row in requests if row.served]
    assert max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans) == 2
    assert "TTFT, ms" in ended.stdout + ended.stderr
    assert "accepted drafts, %" in ended.stdout + ended.stderr


@pytest.mark.load
def test_open_users_do_not_wait_for_answers(tmp_path: Path) -> None:
    server, out = OpenAiServer(), tmp_path / "rows.jsonl"
    # A user's answer takes 0.35 s; closed, it could ask at most 3 times a second.
    arguments = ("--arrivals", "poisson", "--rate", "20", "--no-stream", "--users", "1", "--run-time", "3s")
    ended = locust(server, out, *arguments, "--stop-timeout", "60")
    session, requests, _ = rows(ended, out)
    assert json.loads(session.provenance["load"])["rate"] == 20
    assert len(requests) == len(server.bodies)
    answered = [row.served for row in requests if row.served]
    assert len(answered) == len(requests)
    assert {(one.first_content, one.tokens) for one in answered} == {(None, TOKENS)}
    spans = [(row.arrival, row.arrival + row.served.end_to_end) for row in requests if row.served]
    assert max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans) > 1
    assert {(row.arrivals, row.streamed) for row in requests} == {("poisson", False)}


@pytest.mark.load
def test_failures_are_rows_and_the_status_says_so(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    ended = locust(OpenAiServer(status=503), out, "--users", "1", "--run-time", "1s", "--model", "tiny")
    assert ended.returncode == 1
    failures = [row.failure for row in read_results(out).requests]
    assert failures
    assert {(failure or "")[:9] for failure in failures} <= {"HTTP 503:", "not finis"}
    assert "HTTP 503:" in {(failure or "")[:9] for failure in failures}


@pytest.mark.load
def test_the_ramp_adds_users_and_takes_them_away(tmp_path: Path) -> None:
    server, out = OpenAiServer(), tmp_path / "rows.jsonl"
    ramp = ("--peak-users", "3", "--ramp-steps", "1", "--hold-s", "3", "--quiet-s", "2")
    _, requests, _ = rows(locust(server, out, *ramp, "--stop-timeout", "60"), out)
    users = [row.users for row in sorted(requests, key=lambda row: row.arrival)]
    assert (users[0], max(users), users[-1]) == (1, 3, 1)


@pytest.mark.load
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--arrivals", "poisson", "--rate", "0"), "--rate: got 0.0; allowed: requests a second above 0"),
        (("--prompts", "none.jsonl"), "none.jsonl"),
    ],
)
def test_wrong_options_end_it_before_a_request(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    server, out = OpenAiServer(), tmp_path / "rows.jsonl"
    ended = locust(server, out, "--users", "1", "--run-time", "2s", *arguments)
    assert ended.returncode != 0
    assert sentence in ended.stderr
    assert not server.bodies
    assert not out.exists()
