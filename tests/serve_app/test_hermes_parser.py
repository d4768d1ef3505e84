"""Tool calls in a text, however it is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.hermes_parser import CLOSE, OPEN, FoundCall, HermesParser

WEATHER = FoundCall("weather", '{"city": "Köln"}')
TIME = FoundCall("time", "{}")


def call(found: FoundCall) -> str:
    return f'{OPEN}\n{{"name": "{found.name}", "arguments": {found.arguments}}}\n{CLOSE}'


def parse(pieces: list[str]) -> list[str | FoundCall]:
    """Everything found, neighbouring texts joined."""
    parser = HermesParser()
    joined: list[str | FoundCall] = []
    for found in [*(part for piece in pieces for part in parser.push(piece)), *parser.finish()]:
        if isinstance(found, str) and joined and isinstance(joined[-1], str):
            joined[-1] += found
        else:
            joined.append(found)
    return joined


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Just a text. ", ["Just a text. "]),
        (" \n", [" \n"]),
        (call(WEATHER), [WEATHER]),
        (f"I look.\n{call(WEATHER)}\n{call(TIME)}\n", ["I look.", WEATHER, TIME]),
        (f"A\n{call(TIME)}\n\nB\n", ["A", TIME, "\n\nB\n"]),
        (f'{OPEN}{{"name": "time"}}{CLOSE}', [TIME]),
        # Stopped by the model's end of turn, before the closing tag.
        (f'{OPEN}\n{{"name": "time", "arguments": {{}}}}\n', [TIME]),
        ("a < b <tool> <tool_cal", ["a < b <tool> <tool_cal"]),
        # No calls, but looking like it.
        (f"x {OPEN}nothing{CLOSE} y", [f"x {OPEN}nothing{CLOSE} y"]),
        (f'x {OPEN}{{"name": "time"', [f'x {OPEN}{{"name": "time"']),
        (f'{OPEN}{{"name": 3}}{CLOSE}', [f'{OPEN}{{"name": 3}}{CLOSE}']),
        (f'{OPEN}{{"name": "a", "arguments": [1]}}{CLOSE}', [f'{OPEN}{{"name": "a", "arguments": [1]}}{CLOSE}']),
        (f'{OPEN}{{"name": "a", "arguments": {{"b": NaN}}}}', [f'{OPEN}{{"name": "a", "arguments": {{"b": NaN}}}}']),
        (f"{OPEN}{'[' * 100000}{CLOSE}", [f"{OPEN}{'[' * 100000}{CLOSE}"]),
        (f"{OPEN}nothing{CLOSE}{call(TIME)}", [f"{OPEN}nothing{CLOSE}", TIME]),
        # The closing tag inside an argument.
        (call(FoundCall("say", f'{{"text": "{CLOSE}"}}')), [FoundCall("say", f'{{"text": "{CLOSE}"}}')]),
    ],
)
def test_what_is_found(text: str, expected: list[str | FoundCall]) -> None:
    assert parse([text]) == expected
    if len(text) < 10000:
        assert parse(list(text)) == expected


FRAGMENTS = [
    OPEN,
    CLOSE,
    "<tool",
    "_call>",
    "</",
    " ",
    "\n",
    "text",
    '"',
    "\\",
    call(WEATHER),
    call(TIME),
    '{"name": "a", "arguments": {"b": "',
    '"}}',
    "{}",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.data())
def test_any_split_finds_the_same(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
    assert "".join(pieces) == text
    assert parse(pieces) == parse([text])


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_nothing_but_white_space_and_calls_is_lost(text: str) -> None:
    found = parse([text])
    told = "".join(part for part in found if isinstance(part, str))
    calls = [part for part in found if isinstance(part, FoundCall)]
    assert all(isinstance(json.loads(part.arguments), dict) for part in calls)
    if not calls:
        assert told == text


def test_text_is_told_as_early_as_possible() -> None:
    parser = HermesParser()
    assert parser.push("Hello ") == ["Hello"]
    assert parser.push("you <") == [" you"]
    assert parser.push("3") == [" <3"]
