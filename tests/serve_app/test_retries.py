"""Requests whose replica is lost, over fake engines in this process."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from replicas.errors import EngineDeadError
from replicas.request import GenerationRequest
from tests.serve_app.fake_engine import Script
from tests.serve_app.local_site import PIECES, TEXT, Site

LOST = [
    ActorDiedError(),
    ActorUnavailableError("gone", b"0" * 16),
    EngineDeadError("secret"),
    RayTaskError("generate", "traceback", EngineDeadError("secret")),
    AioRpcError(StatusCode.INTERNAL, Metadata(), Metadata()),
]


def lost_at_first(times: int, *before: str, error: Exception = LOST[0]) -> Callable[[GenerationRequest], Script]:
    """An engine that says `before` and is lost, `times` times; then the whole text."""
    attempts = iter(range(times))
    return lambda _: PIECES if next(attempts, None) is None else [*before, error]


def error_of(answer: httpx.Response) -> dict[str, Any]:
    return answer.json()["error"]


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("before", [[], ["Hel", "lo "]])
def test_a_plain_request_is_answered_by_another_replica_and_in_full(error: Exception, before: list[str]) -> None:
    site = Site(pieces=lost_at_first(2, *before, error=error))
    answer = site.chat()
    assert answer.json()["choices"][0]["message"]["content"] == TEXT
    ids = [request.request_id for request in site.client.engine.requests]
    assert len(set(ids)) == 3
    # What the client is told, and what each attempt was called, begin alike.
    assert ids == [answer.json()["id"], f"{ids[0]}.1", f"{ids[0]}.2"]


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
def test_a_stream_that_has_not_begun_is_begun_again(error: Exception) -> None:
    *chunks, done = Site(pieces=lost_at_first(2, error=error)).events()
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == TEXT
    assert done == "[DONE]"


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
def test_a_stream_that_has_begun_ends_with_an_error_event_and_is_not_begun_again(error: Exception) -> None:
    site = Site(pieces=lost_at_first(1, "Hel", error=error))
    chunk, told, done = site.events()
    assert (chunk["choices"][0]["delta"]["content"], done) == ("Hel", "[DONE]")
    assert told["error"]["type"] == "server_error"
    assert told["error"]["code"] in ("replica_lost", "engine_dead")
    assert len(site.client.engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_ends_replicas_gets_three_and_no_more(stream: bool) -> None:
    site = Site(pieces=[ActorDiedError()])
    answer = site.chat(stream=stream)
    assert (answer.status_code, error_of(answer)["code"]) == (503, "replica_lost")
    assert len(site.client.engine.requests) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_that_is_no_loss_is_told_at_once(stream: bool) -> None:
    site = Site(pieces=[ValueError("a bug")])
    assert site.chat(stream=stream).status_code == 500
    assert len(site.client.engine.requests) == 1


def test_no_attempt_begins_that_the_deadline_would_end_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.retries.PAUSES_S", (0.0, 3600.0))
    site = Site(pieces=[ActorDiedError()], timeout_s=60)
    assert error_of(site.chat())["code"] == "replica_lost"
    assert len(site.client.engine.requests) == 2


def test_tools_are_parsed_anew() -> None:
    call = ['<tool_call>{"name": "f", "argu', 'ments": {}}</tool_call>']
    attempts = iter(range(1))

    def pieces(_: GenerationRequest) -> Script:
        return call if next(attempts, None) is None else [call[0], ActorDiedError()]

    site = Site(pieces=pieces, max_model_len=1024)
    answer = site.chat(tools=[{"type": "function", "function": {"name": "f"}}]).json()
    [found] = answer["choices"][0]["message"]["tool_calls"]
    assert found["function"] == {"name": "f", "arguments": "{}"}


def test_a_dead_engine_ends_its_replica() -> None:
    site = Site(pieces=[EngineDeadError("secret")])
    site.chat()
    assert site.client.process_ends == 3
    site.client.engine.dead = True
    site.send("GET", "/health")
    assert site.client.process_ends == 4
