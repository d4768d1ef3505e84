"""Locust itself, in a process of its own (it replaces sockets and threads when it is imported), against known times."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.results import HttpRequest, Results, Session, read_results
from benchmarks.workloads import OWN_PROMPTS
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
        (("--max-tokens", "0"), "--max-tokens: got 0; allowed: 1 or more"),
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


def until_served(page: httpx.Client, process: subprocess.Popen[str]) -> str:
    """The page, as soon as there is one."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return page.get("/").raise_for_status().text
        except httpx.HTTPError:
            time.sleep(0.2)
    raise AssertionError("locust's page is not served")


def swarm(page: httpx.Client, **form: str) -> dict[str, object]:
    return page.post("/swarm", data={"user_count": "2", "spawn_rate": "2"} | form).json()


@pytest.mark.load
def test_the_page_starts_loads_and_outlives_wrong_options(tmp_path: Path) -> None:
    server, out = OpenAiServer(), tmp_path / "rows.jsonl"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "locust", "-f", str(LOAD / "locustfile.py"), "--web-host", "127.0.0.1"]
    command += ["--web-port", str(port), "--out", str(out), "--stop-timeout", "60"]
    environment = os.environ | {"PYTHONPATH": str(LOAD.parents[1])}
    with server.running(), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as page:
        process = subprocess.Popen([*command, "--host", server.url], cwd=tmp_path, env=environment, text=True)
        try:
            # Our options are fields of the page.
            assert "ignore_eos" in until_served(page, process)
            wrong: dict[str, dict[str, str]] = {
                "--rate: got 0.0; allowed: requests a second above 0": {"arrivals": "poisson", "rate": "0"},
                "--rate: got 'fast'; allowed: a number": {"arrivals": "poisson", "rate": "fast"},
                "--max-tokens: got -1; allowed: 1 or more": {"max_tokens": "-1"},
                "--host: got 'nowhere'; allowed: the server's address, as http://127.0.0.1:8000": {"host": "nowhere"},
            }
            for sentence, form in wrong.items():
                answer = swarm(page, **form)
                assert (answer["success"], answer["message"]) == (False, sentence)
            told = swarm(page, prompts="none.jsonl")
            assert told["success"] is False
            assert "'none.jsonl' cannot be read" in str(told["message"])
            assert process.poll() is None
            assert page.get("/stats/requests").json()["state"] == "ready"
            assert not server.bodies
            for load in (1, 2):
                right = {"host": server.url, "max_tokens": "13", "arrivals": "closed", "rate": "0.5"}
                answer = swarm(page, **right, prompts=str(OWN_PROMPTS))
                assert (answer["success"], answer["message"]) == (True, "Swarming started")
                asked = len(server.bodies)
                while len(server.bodies) < asked + 3:
                    time.sleep(0.1)
                assert page.post("/stop").json()["success"] is True
                assert len(read_results(out).sessions) == load
        finally:
            process.terminate()
            process.wait(30)
    results = read_results(out)
    for session in results.sessions:
        assert session.model == "tiny"
        requests = [row for row in results.requests if row.session == session.id]
        assert len(requests) >= 3
        assert [row.failure for row in requests] == [None] * len(requests)
        assert {row.served.tokens for row in requests if row.served} == {TOKENS}
    assert len(results.requests) == len(server.bodies)
