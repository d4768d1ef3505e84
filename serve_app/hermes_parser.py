"""Tool calls in the Hermes / Qwen format, found in a text that comes in pieces.

A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. It is told when it is complete, so what is found
does not depend on how the text was cut; what only looks like a call stays text.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from serve_app.untyped_data import mapping_or_none

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAYBE_OPEN = re.compile(r"\s*(?:" + "|".join(OPEN[:size] for size in range(len(OPEN), 0, -1)) + r")?\Z")
"""An end of a text that may yet be dropped, or turn out to begin a call."""


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A tool that the model calls."""

    name: str
    arguments: str
    """A JSON object."""


class HermesParser:
    """Follows the text of one answer. White space between text and calls, and between calls, is dropped."""

    def __init__(self) -> None:
        self._text = ""
        """What is neither told nor dropped yet; in a call, what follows its beginning."""
        self._in_call = False
        self._space = ""
        """White space before the call, for the case that it is none."""
        self._searched = 0
        """Characters of it in which no end of the call was found."""
        self._follows_call = False

    def push(self, text: str) -> list[str | FoundCall]:
        """Text and calls that are certain by now, in their order."""
        self._text += text
        found: list[str | FoundCall] = []
        while self._advance(found):
            pass
        return found

    def finish(self) -> list[str | FoundCall]:
        """The rest: nothing follows."""
        rest, self._text = self._text, ""
        if self._in_call:
            call = _call(rest)
            return [self._space + OPEN + rest] if call is None else [call]
        # White space after a call belongs to nothing.
        return [rest] if rest and not (self._follows_call and rest.isspace()) else []

    def _advance(self, found: list[str | FoundCall]) -> bool:
        """One thing further; False if more text is needed first."""
        if self._in_call:
            return self._end_call(found)
        before, opening, after = self._text.partition(OPEN)
        if opening:
            told = before.rstrip()
            self._tell(told, found)
            self._space = before[len(told) :]
            self._text, self._in_call, self._searched = after, True, 0
            return True
        held = MAYBE_OPEN.search(self._text)
        certain = len(self._text) if held is None else held.start()
        self._tell(self._text[:certain], found)
        self._text = self._text[certain:]
        return False

    def _tell(self, text: str, found: list[str | FoundCall]) -> None:
        if text:
            found.append(text)
            self._follows_call = False

    def _end_call(self, found: list[str | FoundCall]) -> bool:
        end = self._text.find(CLOSE, self._searched)
        if end < 0:
            self._searched = max(self._searched, len(self._text) - len(CLOSE) + 1)
            return False
        body = self._text[:end]
        if _ends_in_a_string(body):
            # An argument that holds the closing tag.
            self._searched = end + len(CLOSE)
            return True
        call = _call(body)
        self._text, self._in_call = self._text[end + len(CLOSE) :], False
        if call is None:
            self._tell(self._space + OPEN + body + CLOSE, found)
        else:
            found.append(call)
            self._follows_call = True
        return True


def _ends_in_a_string(body: str) -> bool:
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


def _call(body: str) -> FoundCall | None:
    try:
        data: Any = json.loads(body)
        call = mapping_or_none(data) or {}
        name, arguments = call.get("name"), mapping_or_none(call.get("arguments", {}))
        if not isinstance(name, str) or not name or arguments is None:
            return None
        # NaN, and numbers beyond a float, are no JSON: a client could not read them.
        return FoundCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return None
