"""Request bodies: what is taken, what is refused, and how it reaches the engine."""

import json
from typing import Any

import pytest

from replicas.errors import RequestError
from replicas.request import SamplingParams
from serve_app.generation import ChatMessage
from serve_app.openai_chat import ChatCompletionRequest
from serve_app.openai_protocol import CompletionRequest
from serve_app.request_body import parsed

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
        "presence_penalty": 0.5,
        "frequency_penalty": -2,
        "repetition_penalty": 1.2,
        "logit_bias": {"50256": -100, "7": 1.5},
        "min_tokens": 4,
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
        presence_penalty=0.5,
        frequency_penalty=-2.0,
        repetition_penalty=1.2,
        logit_bias=((50256, -100.0), (7, 1.5)),
        min_tokens=4,
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
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "min_tokens",
        "logprobs",
        "top_logprobs",
    ]
    assert chat(**dict.fromkeys(names)).prompt_and_sampling()[1] == SamplingParams()


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"top_logprobs": 0}, None),
    ],
)
def test_logprobs_of_a_chat(options: dict[str, Any], count: int | None) -> None:
    assert chat(**options).prompt_and_sampling()[1].logprobs == count


@pytest.mark.parametrize("count", [None, 0, 5, 20])
def test_logprobs_of_a_completion(count: int | None) -> None:
    assert completion(logprobs=count).prompt_and_sampling()[1].logprobs == count


@pytest.mark.parametrize("options", [{"logprobs": 21}, {"logprobs": True}, {"top_logprobs": 1}])
def test_logprobs_that_a_completion_does_not_have(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**options)
    assert caught.value.param == next(iter(options))


def test_a_bias_of_what_is_no_token_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^logit_bias\..*got 'a'") as caught:
        chat(logit_bias={"a": 1})
    assert caught.value.param is not None
    assert caught.value.param.startswith("logit_bias")


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
        ("reasoning_effort", "high"),
    ],
)
def test_chat_options_that_cannot_be_honoured_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{option} is not supported: got ") as caught:
        chat(**{option: value})
    assert (caught.value.param, caught.value.code) == (option, "unsupported_parameter")


@pytest.mark.parametrize(("option", "value"), [("echo", True), ("best_of", 2), ("suffix", "x")])
def test_completion_options_that_cannot_be_honoured_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{option} is not supported"):
        completion(**{option: value})


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
        ({"min_tokens": 4, "max_completion_tokens": 3}, "min_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
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
        ({"messages": [USER | {"role": "function"}]}, "messages[0].role"),
        ({"messages": [USER | {"content": None}]}, "messages[0].content"),
        ({"messages": [USER, USER | {"name": "x"}]}, "messages[1].name"),
        ({"messages": [USER | {"function_call": {}}]}, "messages[0]"),
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
