"""What a model samples with where a request does not say."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from replicas.request import SamplingParams
from serve_app.openai_chat import ChatCompletionRequest
from serve_app.openai_protocol import CompletionRequest
from serve_app.sampling_defaults import SamplingDefaults

OF_THE_MODEL = SamplingDefaults(temperature=0.2, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1)
EXPECTED = SamplingParams(temperature=0.2, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, max_tokens=5)


def sampled_with(options: dict[str, Any]) -> list[SamplingParams]:
    """As a chat and as a completion."""
    common = {"model": "m", "max_tokens": 5} | options
    chat = ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "hi"}]} | common)
    completion = CompletionRequest.model_validate({"prompt": "hi"} | common)
    return [body.prompt_and_sampling(OF_THE_MODEL)[1] for body in (chat, completion)]


def test_a_request_that_says_nothing_gets_the_models() -> None:
    assert sampled_with({}) == [EXPECTED] * 2
    assert sampled_with({"temperature": None, "top_k": None}) == [EXPECTED] * 2


@pytest.mark.parametrize(
    ("option", "value", "meant"),
    [
        ("temperature", 0, 0),
        ("top_p", 1, 1),
        ("top_k", 0, 0),
        ("top_k", -1, 0),
        ("min_p", 0, 0),
        ("repetition_penalty", 1, 1),
    ],
)
def test_what_a_request_says_counts_even_where_it_is_the_neutral_value(option: str, value: float, meant: float) -> None:
    changed: dict[str, Any] = {option: meant}
    assert sampled_with({option: value}) == [replace(EXPECTED, **changed)] * 2


@pytest.mark.parametrize("wrong", [{"temperature": 3}, {"top_p": 0}, {"top_k": -1}, {"temprature": 1}])
def test_impossible_defaults_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SamplingDefaults.model_validate(wrong)
