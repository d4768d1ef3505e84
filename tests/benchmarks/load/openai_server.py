"""A server that speaks OpenAI's streams on a real socket, with known times and counts."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

ROLE_S, FIRST_S, GAP_S = 0.02, 0.15, 0.05
CHUNKS, TOKENS = 5, 13
SPECULATION = {"steps": 4, "drafted": 12, "accepted": 8, "method": "eagle3"}
USAGE = {"prompt_tokens": 7, "completion_tokens": TOKENS, "total_tokens": 7 + TOKENS}


@dataclass
class OpenAiServer:
    """A role at 0.02 s, content at 0.15 s and every 0.05 s after; 13 tokens in 5 chunks."""

    speculation: dict[str, Any] | None = field(default_factory=lambda: dict(SPECULATION))
    usage: bool = True
    ending: str = "data: [DONE]\n\n"
    error: str | None = None
    """Instead of the third content."""
    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def told_usage(self) -> dict[str, Any]:
        return USAGE | ({"speculation": self.speculation} if self.speculation else {})

    async def events(self) -> AsyncIterator[str]:
        def event(delta: dict[str, str], finish: str | None = None) -> str:
            return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"

        await asyncio.sleep(ROLE_S)
        yield event({"role": "assistant", "content": ""})
        await asyncio.sleep(FIRST_S - ROLE_S)
        for index in range(CHUNKS):
            await asyncio.sleep(GAP_S if index else 0)
            if index == 2 and self.error:
                yield f"data: {json.dumps({'error': {'message': self.error}})}\n\n"
                return
            yield event({"content": f"word{index} "})
        yield event({}, "stop")
        # After the last token: it must not count into the time.
        await asyncio.sleep(GAP_S)
        if self.usage:
            yield f"data: {json.dumps({'choices': [], 'usage': self.told_usage()})}\n\n"
        yield self.ending

    def application(self) -> FastAPI:
        app = FastAPI()

        async def models() -> dict[str, Any]:
            return {"data": [{"id": "tiny"}]}

        async def chat(request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            if self.status != 200:
                return JSONResponse({"error": {"message": "too many"}}, self.status)
            if body["stream"]:
                return StreamingResponse(self.events(), media_type="text/event-stream")
            await asyncio.sleep(FIRST_S)
            whole: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": "words"}}]}
            return JSONResponse(whole | ({"usage": self.told_usage()} if self.usage else {}))

        app.add_api_route("/v1/models", models)
        app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)
        return app

    @contextmanager
    def running(self) -> Generator["OpenAiServer"]:
        config = uvicorn.Config(self.application(), port=0, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        sock = config.bind_socket()
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        # Connections wait in the socket until the thread serves them.
        sock.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join(30)
