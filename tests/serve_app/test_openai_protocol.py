"""Request bodies: what is taken, what is refused, and how it reaches the engine."""

import json
from typing import Any

import pytest

from replicas.errors import RequestError
from replicas.request import SamplingParams
from serve_app.generation import ChatMessage
from serve_app.ingress import parsed
from serve_app.openai_protocol import ChatCompletionRequest, CompletionRequest

USER = {"role": "user", "content": "hi"}


def chat(**options: Any) -> ChatCompletionRequest:
    body = {"model": "m", "messages": [USER]} | options
    return parsed(ChatCompletionRequest, json.dumps(body).encode())


def completion(**options: Any) -> CompletionRequest:
    return parsed(CompletionRequest, json.dumps({"model": "m", "prompt": "hi"} | options).encode())


def test_defaults_are_openais() -> None:
    assert chat().prompt_and_sampling() == ((ChatMessage("user", "hi"),), SamplingParams())
    assert completion().prompt_and_sampling() == ("hi", SamplingParams(max_tokens=16))


def test_every_option_reaches_the_engine() -> None:
    options: dict[str, Any] = {
        "max_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -3,
        "stop": ["a", "b"],
        "stop_token_ids": [7],
        "ignore_eos": True,
        "speculation": {"num_speculative_tokens": 2},
    }
    expected = SamplingParams(
        temperature=0.0,
        top_k=40,
        top_p=0.5,
        min_p=0.1,
        seed=-3,
        max_tokens=5,
        stop=("a", "b"),
        stop_token_ids=(7,),
        ignore_eos=True,
        num_speculative_tokens=2,
    )
    assert chat(**options).prompt_and_sampling()[1] == expected
    assert completion(**options).prompt_and_sampling()[1] == expected


def test_null_is_the_default() -> None:
    names = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "max_tokens",
        "stream",
        "speculation",
        "n",
        "tools",
    ]
    assert chat(**dict.fromkeys(names)).prompt_and_sampling()[1] == SamplingParams()


@pytest.mark.parametrize(
    ("speculation", "cap"),
    [
        ({}, None),
        ({"enabled": True}, None),
        ({"enabled": False}, 0),
        ({"enabled": False, "num_speculative_tokens": 3}, 0),
        ({"num_speculative_tokens": 0}, 0),
        ({"enabled": True, "num_speculative_tokens": 16}, 16),
    ],
)
def test_speculation_is_a_cap(speculation: dict[str, Any], cap: int | None) -> None:
    assert chat(speculation=speculation).prompt_and_sampling()[1].num_speculative_tokens == cap


def test_options_that_ask_for_nothing_are_taken() -> None:
    neutral: dict[str, Any] = {"n": 1, "presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {}, "user": "me"}
    asked = chat(**neutral, tools=[], logprobs=False, response_format={"type": "text"})
    assert asked.prompt_and_sampling() == chat().prompt_and_sampling()
    asked = completion(**neutral, echo=False, best_of=1, suffix="")
    assert asked.prompt_and_sampling() == completion().prompt_and_sampling()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("n", 2),
        ("n", True),
        ("presence_penalty", 0.1),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("logprobs", True),
        ("top_logprobs", 2),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}),
        ("reasoning_effort", "high"),
    ],
)
def test_chat_options_that_cannot_be_honoured_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{option} is not supported: got ") as caught:
        chat(**{option: value})
    assert (caught.value.param, caught.value.code) == (option, "unsupported_parameter")


@pytest.mark.parametrize(("option", "value"), [("echo", True), ("logprobs", 0), ("best_of", 2), ("suffix", "x")])
def test_completion_options_that_cannot_be_honoured_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{option} is not supported"):
        completion(**{option: value})


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["1", "2", "3", "4", "5"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"speculation": {"num_speculative_tokens": 17}}, "speculation.num_speculative_tokens"),
        ({"speculation": {"k": 1}}, "speculation.k"),
        ({"speculation": True}, "speculation"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [USER | {"role": "tool"}]}, "messages[0].role"),
        ({"messages": [USER | {"content": None}]}, "messages[0].content"),
        ({"messages": [USER, USER | {"name": "x"}]}, "messages[1].name"),
        ({"messages": [USER | {"tool_calls": [{}]}]}, "messages[0]"),
        ({"messages": [USER | {"content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"typo": None}, "typo"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**options).prompt_and_sampling()
    assert caught.value.param == param
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "prompt", ["", [], ["a", "b"], [[1], [2]], [1, "a"], [True], [1.5], None, {"a": 1}, [[]], [""]]
)
def test_one_prompt_a_request(prompt: Any) -> None:
    with pytest.raises(RequestError, match="one prompt a request") as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "expected"), [("a", "a"), (["a"], "a"), ([5, 6], (5, 6)), ([[5, 6]], (5, 6)), ([5], (5,))]
)
def test_prompts(prompt: Any, expected: Any) -> None:
    assert completion(prompt=prompt).prompt_and_sampling()[0] == expected


def test_messages_become_turns() -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
        USER,
    ]
    assert chat(messages=messages).prompt_and_sampling()[0] == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "ab"),
        ChatMessage("assistant", "c"),
        ChatMessage("user", "hi"),
    )


def test_top_k_of_other_servers_for_all() -> None:
    assert chat(top_k=-1).prompt_and_sampling()[1].top_k == 0


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"model": "m", "messages": "\\ud800"}'])
def test_what_is_not_json_is_told_so(content: bytes) -> None:
    with pytest.raises(RequestError, match=r"^the body is not JSON") as caught:
        parsed(ChatCompletionRequest, content)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b'"text"'])
def test_a_body_is_an_object(content: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parsed(CompletionRequest, content)
    assert caught.value.param is None
