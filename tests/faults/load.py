"""Clients that load a server and keep what became of each request."""

import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.served_cluster import MODEL

PROMPT = "hello there, how are you"


@dataclass
class Outcome:
    """One request, as its client saw it."""

    stream: bool
    status: int | None = None
    text: str = ""
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    """OpenAI's error object, of the answer or of a stream's last event."""
    is_done: bool = False
    """A stream's [DONE] came."""
    broken: str | None = None
    """The connection's error."""
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    usage: dict[str, Any] | None = None
    times: list[float] = field(default_factory=list)
    """When each chunk with text came, monotonic."""
    begin: float = 0.0

    @property
    def kind(self) -> str:
        """whole, told (an error that says so), or silent: nothing says that something is missing."""
        if self.status == 200 and self.finish_reason and self.error is None and (self.is_done or not self.stream):
            return "whole"
        if self.status == 429:
            return "refused"
        if self.error is not None and (self.is_done or self.status != 200):
            return "told"
        if self.broken is not None:
            return "broken"
        return "silent"

    @property
    def tpot_s(self) -> float:
        """Seconds an output token, from the first on."""
        assert self.usage is not None
        return (self.times[-1] - self.times[0]) / (self.usage["completion_tokens"] - 1)


def ask(
    url: str,
    stream: bool,
    outcome: Outcome,
    on_line: Callable[[], None] = lambda: None,
    key: str | None = None,
    **options: Any,
) -> None:
    """One greedy completion; what happens goes into `outcome`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 100, "temperature": 0, "ignore_eos": True} | options
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    outcome.begin = time.monotonic()
    try:
        with (
            httpx.Client(timeout=150, trust_env=False) as http,
            http.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as answer,
        ):
            outcome.status, outcome.headers = answer.status_code, answer.headers
            if stream and answer.status_code == 200:
                _read_events(answer, outcome, on_line)
            else:
                _read_answer(answer, outcome)
    except httpx.TransportError as error:
        outcome.broken = type(error).__name__


def _read_events(answer: httpx.Response, outcome: Outcome, on_line: Callable[[], None]) -> None:
    for line in answer.iter_lines():
        on_line()
        if line == "data: [DONE]":
            outcome.is_done = True
        elif line:
            event = json.loads(line.removeprefix("data: "))
            outcome.error = event.get("error")
            outcome.usage = event.get("usage") or outcome.usage
            for choice in event.get("choices", []):
                outcome.text += choice["text"]
                outcome.times.append(time.monotonic())
                outcome.finish_reason = choice["finish_reason"] or outcome.finish_reason


def _read_answer(answer: httpx.Response, outcome: Outcome) -> None:
    raw = answer.read()
    try:
        told = json.loads(raw)
    except json.JSONDecodeError:
        outcome.error = {"message": raw.decode(errors="replace"), "code": None}
        return
    outcome.error = told.get("error")
    outcome.usage = told.get("usage")
    if "choices" in told:
        outcome.text, outcome.finish_reason = told["choices"][0]["text"], told["choices"][0]["finish_reason"]


class Load:
    """Clients on threads of their own."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._threads: list[threading.Thread] = []

    def start(self, url: str, count: int, stream: bool, **options: Any) -> list[Outcome]:
        """`count` more requests, at once."""
        added = [Outcome(stream) for _ in range(count)]
        threads = [threading.Thread(target=ask, args=(url, stream, one), kwargs=options) for one in added]
        self.outcomes += added
        self._threads += threads
        for thread in threads:
            thread.start()
        return added

    def finish(self) -> list[Outcome]:
        """All outcomes, when the last has ended."""
        for thread in self._threads:
            thread.join(200)
            assert not thread.is_alive(), "a request has not ended"
        return self.outcomes


def counts(outcomes: list[Outcome]) -> dict[str, int]:
    """How many of each kind."""
    return dict(Counter(f"{'stream' if one.stream else 'plain'} {one.kind}" for one in outcomes))


def median_tpot_ms(outcomes: list[Outcome]) -> float:
    """Of the streams that are whole."""
    return 1e3 * statistics.median(one.tpot_s for one in outcomes if one.stream and one.kind == "whole")
