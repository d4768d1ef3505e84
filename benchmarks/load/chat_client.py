"""One chat completion from any OpenAI-compatible server, timed. Needs no locust."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.results import Served
from replicas.request import Acceptance


class RequestError(Exception):
    """Why there is no answer, in one sentence."""


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What every request of a load has in common."""

    model: str
    max_tokens: int
    stream: bool = True
    temperature: float = 0.0
    ignore_eos: bool = False
    """All answers are max_tokens long. vLLM's and our extension: other servers may refuse it."""

    def body(self, text: str) -> dict[str, Any]:
        """Of the request whose prompt is `text`."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stream": self.stream,
        }
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body


def ask(client: httpx.Client, settings: ChatSettings, text: str) -> Served:
    """The whole answer to `text`. Raises RequestError for any other end, and for an answer without `usage`."""
    begin = time.perf_counter()
    try:
        with client.stream("POST", "v1/chat/completions", json=settings.body(text)) as response:
            if not response.is_success:
                raise RequestError(f"HTTP {response.status_code}: {response.read().decode(errors='replace')[:200]}")
            if settings.stream:
                return streamed(response.iter_lines(), lambda: time.perf_counter() - begin)
            whole = json.loads(response.read())
            return _served(time.perf_counter() - begin, (), whole.get("usage"))
    except httpx.HTTPError as error:
        raise RequestError(f"{type(error).__name__}: {error}") from error
    except ValueError as error:
        raise RequestError(f"the server's answer is no JSON: {error}") from error


def tpot_of(served: Served) -> float:
    """Its TPOT in seconds. Raises RequestError for an answer of less than two tokens."""
    tpot = served.tpot
    if tpot is None:
        raise RequestError(f"the answer has less than two tokens, {served.tokens}: it has no TPOT")
    return tpot


def streamed(lines: Iterable[str], seconds: Callable[[], float]) -> Served:
    """What `lines` tell, each of which came `seconds()` after the request. Raises RequestError, ValueError.

    Each event is one line: OpenAI's servers break none.
    """
    content: list[float] = []
    usage: dict[str, Any] | None = None
    last, done = 0.0, False
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            done = True
            break
        chunk = json.loads(data)
        if "error" in chunk:
            raise RequestError(f"in the stream: {chunk['error']}")
        moment = seconds()
        deltas = [choice.get("delta") or {} for choice in chunk.get("choices", [])]
        if any(delta.get("content") for delta in deltas):
            content.append(moment)
        if deltas:
            last = moment
        usage = chunk.get("usage") or usage
    if not done:
        raise RequestError("the stream ended without [DONE]")
    return _served(last, tuple(content), usage)


def _served(seconds: float, content: tuple[float, ...], usage: dict[str, Any] | None) -> Served:
    if usage is None:
        raise RequestError("the server's answer has no usage, and tokens are by its count: none can be measured")
    speculation = usage.get("speculation")
    return Served(
        first_content=round(content[0], 6) if content else None,
        end_to_end=round(seconds, 6),
        content_chunks=tuple(round(moment, 6) for moment in content),
        tokens=usage["completion_tokens"],
        num_prompt_tokens=usage["prompt_tokens"],
        acceptance=_acceptance(speculation) if speculation else None,
    )


def _acceptance(speculation: dict[str, Any]) -> Acceptance:
    return Acceptance(speculation["steps"], speculation["drafted"], speculation["accepted"])
