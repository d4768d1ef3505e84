"""Server-sent events: an answer's chunks as bytes, and the response that carries them."""

import json
from collections.abc import AsyncGenerator, Callable, Sequence

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from serve_app.errors import error_answer
from serve_app.generation import Delta
from serve_app.openai_logprobs import chat_logprobs, completion_logprobs
from serve_app.openai_responses import usage_of
from serve_app.plain_answers import AnswerHead, Kind

DONE = b"data: [DONE]\n\n"


class ChunkWriter:
    """Chunks of one answer. What is the same in all of them is serialised once: a step costs one short string."""

    def __init__(
        self, kind: Kind, head: AnswerHead, include_usage: bool, continuous_usage: bool, method: str | None
    ) -> None:
        name = "chat.completion.chunk" if kind == "chat" else "text_completion"
        common = {"id": head.id, "object": name, "created": head.created, "model": head.model}
        self._start = f"data: {_json(common)[:-1]},"
        self._end = ',"usage":null}\n\n' if include_usage else "}\n\n"
        self._continuous_usage, self._method = continuous_usage, method
        self._begun: set[int] = set()
        """Choices that have had a chunk."""
        if kind == "chat":
            self._first, self._later = '"delta":{"role":"assistant","content":', '"delta":{"content":'
            self._logprobs, self._shape = '},"logprobs":', chat_logprobs
        else:
            self._first = self._later = '"text":'
            self._logprobs, self._shape = ',"logprobs":', completion_logprobs

    def delta(self, delta: Delta) -> bytes:
        """The chunk of one step of one choice."""
        reason = "null" if delta.finish_reason is None else f'"{delta.finish_reason}"'
        scores = "null" if delta.scores is None else self._shape(delta.scores).model_dump_json()
        opening = self._later if delta.choice in self._begun else self._first
        self._begun.add(delta.choice)
        said = _said(delta) if delta.tool_calls else _json(delta.text)
        choice = f'{opening}{said}{self._logprobs}{scores},"finish_reason":{reason}'
        end = self._usage_end([delta]) if self._continuous_usage else self._end
        return f'{self._start}"choices":[{{"index":{delta.choice},{choice}}}]{end}'.encode()

    def usage(self, lasts: Sequence[Delta]) -> bytes:
        """The chunk after the last, for a stream that asked for it."""
        return f'{self._start}"choices":[]{self._usage_end(lasts)}'.encode()

    def _usage_end(self, lasts: Sequence[Delta]) -> str:
        return f',"usage":{usage_of(lasts, self._method).model_dump_json()}}}\n\n'


async def events(
    first: Delta,
    rest: AsyncGenerator[Delta, None],
    writer: ChunkWriter,
    include_usage: bool,
    on_error: Callable[[], None],
) -> AsyncGenerator[bytes, None]:
    """The whole body: a chunk a step that has news, perhaps the usage, or else an error; and always one [DONE]."""
    lasts = {first.choice: first}
    try:
        if _has_news(first):
            yield writer.delta(first)
        async for delta in rest:
            lasts[delta.choice] = delta
            if _has_news(delta):
                yield writer.delta(delta)
        if include_usage:
            yield writer.usage([lasts[choice] for choice in sorted(lasts)])
    except Exception as error:
        # The status has long been sent: the client can only be told inside the stream.
        on_error()
        yield b"data: " + error_answer(error).body() + b"\n\n"
    yield DONE


class EventStream(StreamingResponse):
    """Closes its sources at once when the client is gone, and does not leave that to the garbage collector."""

    def __init__(
        self, content: AsyncGenerator[bytes, None], deltas: AsyncGenerator[Delta, None], on_end: Callable[[], None]
    ) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._content, self._deltas, self._on_end = content, deltas, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._content.aclose()
            # Closing the content closes nothing if it has not begun.
            await self._deltas.aclose()
            self._on_end()


def _has_news(delta: Delta) -> bool:
    return bool(delta.text or delta.scores or delta.tool_calls or delta.finish_reason)


def _said(delta: Delta) -> str:
    """The content, and the tool calls after it."""
    calls = [
        {
            "index": call.index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in delta.tool_calls
    ]
    return f'{_json(delta.text or None)},"tool_calls":{_json(calls)}'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
