"""Tools in requests and answers."""

import json
from typing import Any

import pytest

from replicas.errors import RequestError
from serve_app.engine_protocol import ToolFormat
from serve_app.generation import ChatMessage
from serve_app.hermes_prompt import messages_with_tools
from serve_app.prompt_tokens import token_ids_of
from tests.serve_app.fake_engine import ByteCodec
from tests.serve_app.local_site import CHAT, Site

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
PIECES = ["I loo", "k.\n<tool_", 'call>{"name": "weather", "argu', 'ments": {"city": "Köln"}}</tool_call>', "\n", ""]
CALL = {"name": "weather", "arguments": '{"city": "Köln"}'}
ASKED = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]


class ToolCodec(ByteCodec):
    """Its template writes tools."""

    tool_format: ToolFormat = "hermes"


class OtherCodec(ByteCodec):
    """Its template has a format of its own."""

    tool_format: ToolFormat = "other"


def prompt_of(site: Site) -> str:
    [request] = site.client.engine.requests
    return bytes(request.prompt_token_ids).decode()


def wide_site(pieces: list[str] = PIECES) -> Site:
    return Site(pieces=pieces, max_model_len=2048)


def test_a_call_is_told_apart_from_the_text() -> None:
    site = wide_site()
    choice = site.chat(tools=[TOOL]).json()["choices"][0]
    [call] = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "I look."}
    assert choice["finish_reason"] == "tool_calls"
    assert (call["type"], call["function"]) == ("function", CALL)
    assert call["id"].startswith("call_")


def test_a_call_alone_has_no_content() -> None:
    message = wide_site(PIECES[1:]).chat(tools=[TOOL]).json()["choices"][0]["message"]
    assert message["content"] == "k."
    message = wide_site(["<tool_" + "".join(PIECES[2:4])]).chat(tools=[TOOL]).json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == CALL


def test_a_stream_has_the_call_in_one_delta() -> None:
    *chunks, done = wide_site().events(tools=[TOOL])
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "I loo"}
    assert choices[1]["delta"] == {"content": "k."}
    [call] = choices[2]["delta"]["tool_calls"]
    assert choices[2]["delta"]["content"] is None
    assert (call["index"], call["type"], call["function"]) == (0, "function", CALL)
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "tool_calls"]
    assert choices[3]["delta"] == {"content": ""}


def test_every_choice_has_calls_of_its_own() -> None:
    choices = wide_site().chat(tools=[TOOL], n=3, seed=1).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["I look."] * 3
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 3


def test_without_tools_the_text_stays_as_it_is() -> None:
    for options in ({}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}):
        site = wide_site()
        choice = site.chat(**options).json()["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "".join(PIECES)}
        assert choice["finish_reason"] == "stop"
        assert "weather" not in prompt_of(site)


def test_one_call_at_most() -> None:
    site = wide_site()
    site.chat(tools=[TOOL], parallel_tool_calls=False, stop="x")
    assert site.client.engine.requests[0].sampling.stop == ("x", "</tool_call>")
    stopped = wide_site(['<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}'])
    choice = stopped.chat(tools=[TOOL], parallel_tool_calls=False).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == CALL


def test_a_template_without_tools_gets_them_as_text() -> None:
    site = wide_site()
    assert site.chat(tools=[TOOL], messages=ASKED).status_code == 200
    prompt = prompt_of(site)
    assert prompt.startswith("<system># Tools")
    assert json.dumps(TOOL) in prompt
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    assert prompt.endswith(f"<user>hi<assistant>{call}<user><tool_response>\nrain\n</tool_response>")


def test_tools_join_the_system_message_that_is_there() -> None:
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "hi"}
    first, *_ = messages_with_tools([system, user], [TOOL])
    assert first["content"].startswith("Be brief.\n\n# Tools\n")


def test_a_template_with_tools_gets_them_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []

    class Watched(ToolCodec):
        def encode_chat(self, messages: Any, add_generation_prompt: bool = True, tools: Any = ()) -> list[int]:
            taken.extend((messages, tools))
            return [1]

    site = wide_site()
    monkeypatch.setattr(site.client.engine, "codec", Watched())
    site.chat(tools=[TOOL], messages=ASKED)
    messages, tools = taken
    assert tools == (TOOL,)
    assert messages[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Köln"}}
    assert messages[2] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}


def test_another_format_is_refused() -> None:
    with pytest.raises(RequestError, match="in a format that is not Hermes'"):
        token_ids_of(OtherCodec(), (ChatMessage("user", "hi"),), [TOOL])


def test_tokenize_counts_tools_too() -> None:
    body = {"messages": CHAT["messages"], "tools": [TOOL]}
    site = wide_site()
    tokens = site.send("POST", "/tokenize", json=body).json()["tokens"]
    site.chat(tools=[TOOL])
    assert tokens == list(site.client.engine.requests[0].prompt_token_ids)
    refused = site.send("POST", "/tokenize", json={"prompt": "x", "tools": [TOOL]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "time"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": ASKED[1]["tool_calls"]}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        (
            {"messages": [ASKED[1] | {"tool_calls": [{"id": "c", "function": {"name": "a", "arguments": "[1]"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], param: str) -> None:
    answer = wide_site().chat(**options)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
