"""Sampling parameters to token choices."""

import math

from replicas.request import SamplingParams
from replicas.scheduling.step_plan import TokenBias, TokenChoice
from replicas.scheduling.token_choice import token_choice


def test_defaults_ask_for_nothing() -> None:
    choice = token_choice(SamplingParams(seed=5), 4, (9,), 100)
    assert choice == TokenChoice(1.0, 0, 1.0, 0.0, 5, num_prompt_tokens=4)
    assert not choice.is_penalised
    assert choice.biases == ()


def test_every_parameter_is_taken_over() -> None:
    sampling = SamplingParams(
        0.5, 7, 0.9, 0.1, 0.2, 0.3, 1.1, ((3, 2.0), (4, 0.0)), seed=6, logprobs=2, prompt_logprobs=0
    )
    choice = token_choice(sampling, 4, (9,), 100)
    assert choice == TokenChoice(0.5, 7, 0.9, 0.1, 6, 0.2, 0.3, 1.1, (TokenBias(3, 2.0),), 4, 2, 0)
    assert choice.is_penalised


def test_each_penalty_alone_is_one() -> None:
    for change in ({"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"repetition_penalty": 0.9}):
        assert token_choice(SamplingParams(**change), 4, (), 100).is_penalised  # pyright: ignore[reportArgumentType]


def test_min_tokens_holds_back_the_stop_tokens_that_the_model_has() -> None:
    choice = token_choice(SamplingParams(min_tokens=3), 4, (9, 100, -1), 100)
    assert choice.biases == (TokenBias(9, -math.inf, until=7),)
