"""The whole HTTP application over replicas in this process."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
from fastapi import FastAPI
from ray.serve.exceptions import BackPressureError
from starlette.requests import Request
from starlette.responses import Response

from replicas.request import FinishReason
from serve_app.api_keys import Access
from serve_app.generation import Delta, GenerationJob
from serve_app.ingress import build_http_app
from serve_app.live_settings import IngressLive
from serve_app.metric_recorder import Recorder
from serve_app.request_spans import NoRequestSpans, RequestSpans
from serve_app.served_models import ServedModel
from serve_app.settings import ModelSettings
from tests.serve_app.fake_engine import LocalClient, LocalStream, Pieces

PIECES = ["Hel", "lo ", "", '"🦜"\n', "北京\u2028"]
TEXT = "".join(PIECES)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def _serves_own_answer(request: Request, error: Exception) -> Response:
    return Response("Request dropped due to backpressure", 429)


class FullClient(LocalClient):
    """Serve's queue for the model is full."""

    def generate(self, job: GenerationJob) -> LocalStream:
        async def refuse() -> AsyncGenerator[Delta, None]:
            if job:
                raise BackPressureError(2, 1, 429, 3)
            yield

        return LocalStream(refuse())

    async def stats(self) -> dict[str, float]:
        raise BackPressureError(2, 1, 429, 3)


class Site:
    """The application with one model."""

    def __init__(
        self,
        pieces: Pieces | None = None,
        kind: type[LocalClient] = LocalClient,
        drafter: bool = True,
        timeout_s: float | None = None,
        access: Access = Access(),  # noqa: B008 (frozen)
        max_model_len: int = 64,
        last: FinishReason = "stop",
        live: IngressLive = IngressLive(),  # noqa: B008 (frozen)
        recorder: Recorder | None = None,
        spans: RequestSpans = NoRequestSpans(),  # noqa: B008 (stateless)
    ) -> None:
        settings: dict[str, Any] = {"id": "m", "model": ".", "max_model_len": max_model_len}
        if drafter:
            settings["speculative_config"] = {"method": "eagle3", "model": ".", "num_speculative_tokens": 3}
        self.settings = model = ModelSettings.model_validate(settings)
        self.client = kind(model, PIECES if pieces is None else pieces)
        self.client.engine.last = last
        served = {"m": ServedModel(model, self.client, 1, recorder)}
        self.app: FastAPI = build_http_app(served, timeout_s, access, lambda: live, spans=spans)
        # As Serve does with every application of an ingress.
        self.app.add_exception_handler(BackPressureError, _serves_own_answer)

    def send(
        self, method: str, path: str, client: tuple[str, int] = ("127.0.0.1", 5), **options: Any
    ) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=client)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                return await http.request(method, path, **options)

        return asyncio.run(send())

    def chat(self, **options: Any) -> httpx.Response:
        return self.send("POST", "/v1/chat/completions", json=CHAT | options)

    def events(self, **options: Any) -> list[Any]:
        """The data of each event of a streamed chat, [DONE] left as it is."""
        answer = self.chat(stream=True, **options)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("\n\n")
        data = [event.removeprefix("data: ") for event in answer.text.removesuffix("\n\n").split("\n\n")]
        return [part if part == "[DONE]" else json.loads(part) for part in data]


async def until(true: Callable[[], bool]) -> None:
    """Gives the loop turns, up to a number that only a fault reaches."""
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")
