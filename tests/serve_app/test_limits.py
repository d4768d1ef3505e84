"""Bodies that are too large, requests that take too long."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from replicas.request import SamplingParams
from serve_app.deadline import Deadline
from serve_app.errors import RequestTimeoutError
from serve_app.generation import Delta, GenerationJob
from serve_app.live_settings import IngressLive
from serve_app.model_client import deltas
from tests.serve_app.fake_engine import LocalClient, LocalStream
from tests.serve_app.local_site import CHAT, Site, until

PATHS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_is_too_large_is_not_read_to_its_end(path: str) -> None:
    site = Site(live=IngressLive(max_body_bytes=4096))
    sent = 0

    async def body() -> AsyncGenerator[bytes, None]:
        nonlocal sent
        for _ in range(1000):
            sent += 1024
            yield b" " * 1024

    answer = site.send("POST", path, content=body())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413, "request_too_large")
    assert "more than 4096 bytes" in error["message"]
    assert sent == 5 * 1024


def test_a_body_of_just_the_limit_is_taken() -> None:
    body = json.dumps(CHAT).encode()
    site = Site(live=IngressLive(max_body_bytes=4096))
    assert site.send("POST", PATHS[0], content=body + b" " * (4096 - len(body))).status_code == 200
    assert site.send("POST", PATHS[0], content=body + b" " * (4097 - len(body))).status_code == 413


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_never_ends_is_stopped_at_the_deadline(path: str) -> None:
    async def body() -> AsyncGenerator[bytes, None]:
        yield b"{"
        await asyncio.Event().wait()

    answer = Site(timeout_s=0.05).send("POST", path, content=body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request_timeout")


class QueueingClient(LocalClient):
    """Every replica is busy."""

    def generate(self, job: GenerationJob) -> LocalStream:
        async def wait() -> AsyncGenerator[Delta, None]:
            await asyncio.Event().wait()
            yield Delta("", 0, 0, 0, 0, 0, 0, 0.0, None)

        return LocalStream(wait())


@pytest.mark.parametrize("stream", [False, True])
def test_waiting_for_a_replica_counts(stream: bool) -> None:
    answer = Site(kind=QueueingClient, timeout_s=0.05).chat(stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "request_timeout")


def test_a_slow_reader_counts_and_holds_no_blocks_afterwards() -> None:
    site = Site(pieces=["a", "b", "c"])
    job = GenerationJob("r", "hi", SamplingParams())

    async def read_slowly() -> list[Any]:
        stream = deltas(site.client, job, Deadline.of(0.05))
        found = [(await stream.__anext__()).text]
        await until(lambda: site.client.engine.running == 0)
        with pytest.raises(RequestTimeoutError, match=r"took longer than 0\.05 s"):
            await stream.__anext__()
        return found

    assert asyncio.run(read_slowly()) == ["a"]
