"""response_format, guided_regex, guided_choice and enforced tool calls, from the body to the engine."""

import json
from typing import Any

import pytest

from replicas.errors import RequestError
from replicas.request import Grammar
from replicas.structured_output import Grammars
from serve_app.openai_chat import ChatCompletionRequest
from serve_app.openai_protocol import CompletionRequest
from serve_app.request_body import parsed
from tests.serve_app.local_site import Site

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}


def grammar(**options: Any) -> Grammar | None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | options
    return parsed(ChatCompletionRequest, json.dumps(body).encode()).prompt_and_sampling()[1].grammar


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_schema", '{"type": "object"}', "response_format")),
        ({"response_format": JSON_SCHEMA}, Grammar("json_schema", json.dumps(SCHEMA), "response_format")),
        ({"guided_regex": "a+"}, Grammar("regex", "a+", "guided_regex")),
        ({"guided_choice": ["a", "b"]}, Grammar("choice", '["a", "b"]', "guided_choice")),
    ],
)
def test_what_is_asked_for(options: dict[str, Any], expected: Grammar | None) -> None:
    assert grammar(**options) == expected
    body = {"model": "m", "prompt": "hi"} | options
    assert parsed(CompletionRequest, json.dumps(body).encode()).prompt_and_sampling()[1].grammar == expected


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.json_schema"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.json_object.schema"),
        ({"response_format": JSON_SCHEMA | {"json_schema": {"name": "a", "schema": {"not": {}}}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice[0]"),
        ({"guided_regex": "a" * 70000}, "guided_regex"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "min_tokens": 2}, "min_tokens"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        grammar(**options)
    assert caught.value.param == param


def tool(name: str, schema: dict[str, Any] | None = SCHEMA, **options: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **options}}


NAMED = {"type": "function", "function": {"name": "f"}}
F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
TOOLS = [tool("f"), tool("g", None)]
STRICT = [tool("f", strict=True), tool("g", None)]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    """A token a byte."""
    return Grammars(lambda: [*(bytes([code]) for code in range(256)), b""], 257, [256])


@pytest.mark.parametrize(
    ("options", "right", "wrong"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, [F, G, f"{F}\n{G}"], ["", "hi", F.replace("1", '"x"'), F + "x"]),
        ({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, [F, G], [f"{F}\n{G}"]),
        ({"tools": TOOLS, "tool_choice": NAMED}, [F], [G, f"{F}\n{F}", "hi"]),
        ({"tools": STRICT}, ["hi", F, f"I look. {F} So."], [F.replace("1", '"x"'), F.replace('"f"', '"h"')]),
    ],
)
def test_calls_are_enforced(grammars: Grammars, options: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    enforced = grammar(**options)
    assert enforced is not None

    def takes(text: str) -> bool:
        matcher = grammars.matcher(enforced)
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(256)

    assert [takes(text) for text in right] == [True] * len(right)
    assert [takes(text) for text in wrong] == [False] * len(wrong)


@pytest.mark.parametrize("options", [{"tools": TOOLS}, {"tools": STRICT, "tool_choice": "none"}, {"tools": []}])
def test_otherwise_nothing_is(options: dict[str, Any]) -> None:
    assert grammar(**options) is None


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [tool("f", {"not": {}}, strict=True)]}, "tools"),
        ({"tools": [tool("f", {"not": {}})], "tool_choice": "required"}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required", "min_tokens": 1}, "min_tokens"),
    ],
)
def test_calls_that_cannot_be_enforced(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        grammar(**options)
    assert caught.value.param == param


def test_a_schema_that_is_not_enforced_is_not_judged() -> None:
    assert grammar(tools=[tool("f", {"not": {}})]) is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_left_its_grammar_is_an_error_of_that_request(stream: bool) -> None:
    site = Site(pieces=[""], last="error")
    answer = site.chat(guided_regex="a", stream=stream)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_regex")
    late = Site(pieces=["a", ""], last="error").events(guided_regex="ab")
    assert late[0]["choices"][0]["delta"]["content"] == "a"
    assert late[1]["error"]["code"] == "invalid_grammar"
    assert late[2:] == ["[DONE]"]
