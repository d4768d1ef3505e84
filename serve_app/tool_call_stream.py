"""Tool calls out of a stream of deltas: each choice's text is parsed, and its calls told apart from it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from uuid import uuid4

from serve_app.generation import Delta, ToolCall
from serve_app.hermes_parser import FoundCall, HermesParser


async def with_tool_calls(deltas: AsyncGenerator[Delta, None], num_choices: int) -> AsyncGenerator[Delta, None]:
    """`deltas` with their tool calls. Closing it closes them."""
    choices = [_ChoiceCalls() for _ in range(num_choices)]
    async with aclosing(deltas):
        async for delta in deltas:
            yield choices[delta.choice].told(delta)


class _ChoiceCalls:
    """Of one choice."""

    def __init__(self) -> None:
        self._parser = HermesParser()
        self._count = 0

    def told(self, delta: Delta) -> Delta:
        found = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            found += self._parser.finish()
        calls: list[ToolCall] = []
        for call in found:
            if isinstance(call, FoundCall):
                calls.append(ToolCall(self._count, f"call_{uuid4().hex}", call.name, call.arguments))
                self._count += 1
        reason = "tool_calls" if delta.finish_reason == "stop" and self._count else delta.finish_reason
        text = "".join(part for part in found if isinstance(part, str))
        return replace(delta, text=text, tool_calls=tuple(calls), finish_reason=reason)
