"""The routes, over a replica with a fake engine in this process."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import httpx
import pytest

from replicas.errors import EngineDeadError
from serve_app import __version__
from tests.serve_app.local_site import CHAT, TEXT, FullClient, Site, until

SPECULATION = {
    "method": "eagle3",
    "num_speculative_tokens": 3,
    "steps": 5,
    "drafted": 15,
    "accepted": 5,
    "mean_acceptance_length": 2.0,
}
USAGE = {
    "prompt_tokens": 8,
    "completion_tokens": 10,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "speculation": SPECULATION,
}


def error_of(answer: httpx.Response) -> dict[str, Any]:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def test_a_plain_chat() -> None:
    answer = Site().chat().json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": TEXT},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


def test_a_plain_completion() -> None:
    answer = Site().send("POST", "/v1/completions", json={"model": "m", "prompt": "12345678"}).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == USAGE


def test_a_stream_is_one_chunk_a_step_that_has_text() -> None:
    *chunks, done = Site().events()
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": "Hel"},
        {"content": "lo "},
        {"content": '"🦜"\n'},
        {"content": "北京\u2028"},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_a_stream_that_asks_gets_its_usage_last() -> None:
    *chunks, usage, done = Site().events(stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert [chunk["usage"] for chunk in chunks] == [None] * 4
    assert (usage["choices"], usage["usage"]) == ([], USAGE)
    assert usage.keys() == chunks[0].keys()


CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


def test_a_stream_that_asks_gets_its_usage_in_every_chunk() -> None:
    plain = Site().events()[:-1]
    *chunks, usage, done = Site().events(stream_options=CONTINUOUS)
    assert done == "[DONE]"
    assert (usage["choices"], usage["usage"]) == ([], USAGE)
    assert [chunk["choices"] for chunk in chunks] == [chunk["choices"] for chunk in plain]
    told = [chunk["usage"] for chunk in chunks]
    counts = [one["completion_tokens"] for one in told]
    assert counts == sorted(set(counts))
    assert {one["prompt_tokens"] for one in told} == {8}
    assert all(one["total_tokens"] == 8 + one["completion_tokens"] for one in told)
    # The last text is complete.
    assert told[-1] == USAGE


def test_a_text_completion_has_its_usage_in_every_chunk() -> None:
    body = {"model": "m", "prompt": "12345678", "stream": True, "stream_options": CONTINUOUS}
    answer = Site().send("POST", "/v1/completions", json=body)
    *chunks, usage, done = answer.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    told = [json.loads(chunk.removeprefix("data: "))["usage"] for chunk in (*chunks, usage)]
    counts = [one["completion_tokens"] for one in told[:-1]]
    assert counts == sorted(set(counts))
    assert told[-2] == told[-1]
    assert told[-1]["completion_tokens"] == 10


def test_usage_in_every_chunk_is_of_its_choice() -> None:
    *chunks, usage, _ = Site().events(stream_options=CONTINUOUS, n=2, seed=1)
    lasts = {chunk["choices"][0]["index"]: chunk["usage"]["completion_tokens"] for chunk in chunks}
    assert lasts == {0: 10, 1: 10}
    assert usage["usage"]["completion_tokens"] == 20


def test_usage_in_every_chunk_alone_asks_for_nothing() -> None:
    # As in vLLM: it goes with include_usage.
    *chunks, done = Site().events(stream_options={"continuous_usage_stats": True})
    assert done == "[DONE]"
    assert all("usage" not in chunk for chunk in chunks)


def test_a_text_completion_streams_texts() -> None:
    body = {"model": "m", "prompt": "x", "stream": True}
    answer = Site().send("POST", "/v1/completions", json=body)
    *chunks, done = answer.text.split("data: ")[1:]
    assert done == "[DONE]\n\n"
    assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == TEXT


def test_an_answer_without_text_still_ends_with_a_reason() -> None:
    chunk, done = Site(pieces=[""]).events()
    assert chunk["choices"][0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert done == "[DONE]"


def test_without_a_drafter_the_method_is_null() -> None:
    site = Site(drafter=False)
    told = site.chat().json()["usage"]["speculation"]
    assert (told["method"], told["num_speculative_tokens"]) == (None, 0)
    assert site.send("GET", "/v1/models/m").json()["speculation"] is None


def test_a_request_that_switches_it_off_is_told_k_0() -> None:
    told = Site().chat(speculation={"enabled": False}).json()["usage"]["speculation"]
    assert (told["method"], told["num_speculative_tokens"]) == ("eagle3", 0)


def test_models() -> None:
    site = Site()
    card = {
        "id": "m",
        "object": "model",
        "created": 1,
        "owned_by": "eyrie",
        "max_model_len": 64,
        "speculation": {"method": "eagle3", "num_speculative_tokens": 3},
    }
    assert site.send("GET", "/v1/models").json() == {"object": "list", "data": [card]}
    assert site.send("GET", "/v1/models/m").json() == card
    unknown = site.send("GET", "/v1/models/org/other")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
    ],
)
def test_routes_that_are_not(method: str, path: str, status: int, code: str) -> None:
    answer = Site().send(method, path)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    assert path in error_of(answer)["message"]


def test_a_body_needs_no_content_type() -> None:
    answer = Site().send("POST", "/v1/chat/completions", content=json.dumps(CHAT))
    assert answer.json()["choices"][0]["message"]["content"] == TEXT


def test_what_is_wrong_with_a_body_is_400() -> None:
    answer = Site().chat(temperature=9, tempo=1)
    error = error_of(answer)
    assert (answer.status_code, error["param"], error["type"]) == (400, "temperature", "invalid_request_error")
    assert error["message"].startswith("temperature: got 9; it should be less than or equal to 2; tempo: unknown key")
    malformed = Site().send("POST", "/v1/chat/completions", content=b'{"model": ')
    assert (malformed.status_code, error_of(malformed)["code"]) == (400, "invalid_json")


def test_an_unknown_model_is_404() -> None:
    answer = Site().chat(model="other")
    assert (answer.status_code, error_of(answer)["code"], error_of(answer)["param"]) == (
        404,
        "model_not_found",
        "model",
    )


@pytest.mark.parametrize("stream", [False, True])
class TestErrorsBeforeTheFirstStep:
    """A stream that has not begun has a status like a plain answer."""

    def test_a_prompt_that_is_too_long(self, stream: bool) -> None:
        site = Site()
        answer = site.chat(stream=stream, messages=[{"role": "user", "content": "x" * 100}])
        error = error_of(answer)
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
        assert error["message"] == "106 tokens, limit 64"
        assert site.chat(stream=stream).status_code == 200

    def test_overload(self, stream: bool) -> None:
        answer = Site(kind=FullClient).chat(stream=stream)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
        assert error_of(answer)["code"] == "rate_limit_exceeded"

    def test_a_dead_engine(self, stream: bool) -> None:
        site = Site()
        site.client.engine.dead = True
        answer = site.chat(stream=stream)
        assert (answer.status_code, error_of(answer)["code"]) == (503, "engine_dead")
        assert "secret" not in answer.text

    def test_a_bug(self, stream: bool) -> None:
        answer = Site(pieces=[ValueError("secret")]).chat(stream=stream)
        assert (answer.status_code, error_of(answer)["code"]) == (500, "internal_error")
        assert "secret" not in answer.text


def test_an_error_after_the_first_step_is_an_event() -> None:
    chunk, error, done = Site(pieces=["a", EngineDeadError("secret")]).events()
    assert chunk["choices"][0]["delta"]["content"] == "a"
    assert error["error"]["code"] == "engine_dead"
    assert done == "[DONE]"


@pytest.mark.parametrize("pieces", [["a", "b", EngineDeadError("x")], [EngineDeadError("x")]])
def test_a_plain_answer_is_never_half_a_text(pieces: list[Any]) -> None:
    assert Site(pieces=pieces).chat().status_code == 503


def test_a_request_that_takes_too_long_is_stopped() -> None:
    site = Site(pieces=["a", None], timeout_s=0.05)
    answer = site.chat()
    assert (answer.status_code, error_of(answer)["code"]) == (408, "request_timeout")
    assert site.client.engine.running == 0


def test_a_stream_that_takes_too_long_ends_with_an_error() -> None:
    site = Site(pieces=["a", None], timeout_s=0.05)
    chunk, error, done = site.events()
    assert (chunk["choices"][0]["delta"]["content"], done) == ("a", "[DONE]")
    assert error["error"]["code"] == "request_timeout"
    assert site.client.engine.running == 0


@pytest.mark.parametrize(("stream", "pieces"), [(False, ["a", None]), (True, [None]), (True, ["a", None])])
def test_a_client_that_leaves_cancels_the_engines_work(stream: bool, pieces: list[Any]) -> None:
    site = Site(pieces=pieces)

    async def leave() -> None:
        left = asyncio.Event()
        body = json.dumps(CHAT | {"stream": stream}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            pass

        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [],
        }
        request = asyncio.ensure_future(site.app(scope, receive, send))
        await until(lambda: site.client.engine.running == 1)
        left.set()
        await asyncio.wait_for(request, 5)
        await until(lambda: site.client.engine.running == 0)

    asyncio.run(leave())


class TestHealth:
    """What a load balancer sees."""

    def test_a_model_that_answers(self) -> None:
        answer = Site().send("GET", "/health")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "models": {"m": "ok"}})

    def test_a_dead_engine(self) -> None:
        site = Site()
        site.client.engine.dead = True
        answer = site.send("GET", "/health")
        assert (answer.status_code, answer.json()["models"]) == (503, {"m": "down"})

    def test_silence_is_starting_at_first_and_busy_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("serve_app.probe_routes.PROBE_TIMEOUT_S", 0.02)
        site = Site()
        answering = site.client.stats

        def silent() -> Awaitable[dict[str, float]]:
            return asyncio.sleep(60, {})

        site.client.stats = silent
        assert site.send("GET", "/health").status_code == 503
        assert site.send("GET", "/health").json()["models"] == {"m": "starting"}
        site.client.stats = answering
        assert site.send("GET", "/health").json()["models"] == {"m": "ok"}
        site.client.stats = silent
        answer = site.send("GET", "/health")
        assert (answer.status_code, answer.json()["models"]) == (200, {"m": "busy"})

    def test_a_full_queue_is_busy_and_not_down(self) -> None:
        site = Site()
        assert site.send("GET", "/health").status_code == 200
        site.client.stats = FullClient(site.settings, []).stats
        answer = site.send("GET", "/health")
        assert (answer.status_code, answer.json()["models"]) == (200, {"m": "busy"})
        assert error_of(site.send("GET", "/stats"))["code"] == "rate_limit_exceeded"

    def test_ready_is_for_the_next_request(self) -> None:
        site = Site()
        assert site.send("GET", "/ready").status_code == 200
        site.client.stats = FullClient(site.settings, []).stats
        answer = site.send("GET", "/ready")
        assert (answer.status_code, answer.json()) == (503, {"status": "unavailable", "models": {"m": "busy"}})
        assert Site(kind=FullClient).send("GET", "/ready").json()["models"] == {"m": "starting"}

    def test_version(self) -> None:
        assert Site().send("GET", "/version").json() == {"version": __version__}

    def test_stats(self) -> None:
        assert Site().send("GET", "/stats").json() == {"m": {"running": 0, "free_blocks": 100}}
