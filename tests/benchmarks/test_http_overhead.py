"""What the command asks of a server whose times are known."""

import time

import httpx
import pytest

from benchmarks import http_overhead
from benchmarks.http_overhead import tpot_through_http, wait_for_first_token
from benchmarks.load.chat_client import ChatSettings, RequestError
from tests.benchmarks.load.openai_server import FIRST_S, TOKENS, OpenAiServer

SETTINGS = ChatSettings("tiny", 9)


def test_tpot_is_by_the_servers_count_from_the_first_content() -> None:
    with OpenAiServer().running() as server, httpx.Client(base_url=server.url) as client:
        asked = time.perf_counter()
        tpot = tpot_through_http(client, SETTINGS, "say")
        elapsed = time.perf_counter() - asked
        started = wait_for_first_token(client, SETTINGS)
    # However late the client is woken: the first content is no earlier than FIRST_S, and takes no part.
    assert 0 < tpot * (TOKENS - 1) <= elapsed - FIRST_S
    assert started >= FIRST_S
    body = server.bodies[0]
    assert (body["messages"][0]["content"], body["max_tokens"], body["temperature"]) == ("say", 9, 0)


def test_a_server_that_refuses_is_waited_for_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_overhead, "START_LIMIT_S", 0.5)
    with OpenAiServer(status=503).running() as server, httpx.Client(base_url=server.url) as client:
        with pytest.raises(TimeoutError, match=r"no token within 0.5 s"):
            wait_for_first_token(client, SETTINGS)
        assert len(server.bodies) > 1
        with pytest.raises(RequestError, match="HTTP 503"):
            tpot_through_http(client, SETTINGS, "say")


def test_an_answer_without_usage_has_no_tpot() -> None:
    server = OpenAiServer(usage=False)
    with server.running(), httpx.Client(base_url=server.url) as client, pytest.raises(RequestError, match="no usage"):
        tpot_through_http(client, SETTINGS, "say")
