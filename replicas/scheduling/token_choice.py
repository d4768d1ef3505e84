"""From a request's SamplingParams to the TokenChoice of its plans: defaults resolved, tokens checked."""

import math
import random
from collections.abc import Iterable

from replicas.errors import RequestError
from replicas.request import MAX_LOGPROBS, SamplingParams
from replicas.scheduling.step_plan import TokenBias, TokenChoice

MAX_BIASES = 1024
"""Entries of logit_bias, and stop tokens under min_tokens, that a request may have together: a shape of the device."""


def token_choice(
    sampling: SamplingParams, num_prompt_tokens: int, stop_token_ids: Iterable[int], vocab_size: int
) -> TokenChoice:
    """How a sequence with `sampling` and these stop tokens chooses.

    Raises RequestError for tokens that the model does not have, too many biases, and too many logprobs.
    """
    for name, count in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if count is not None and not 0 <= count <= MAX_LOGPROBS:
            raise RequestError(f"{name} is {count}; allowed: 0 to {MAX_LOGPROBS}", name)
    # A top_k that keeps all tokens is none; as such it needs no filter and fits the device's int32.
    top_k = sampling.top_k if sampling.top_k < vocab_size else 0
    return TokenChoice(
        temperature=sampling.temperature,
        top_k=top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=random.getrandbits(31) if sampling.seed is None else _fold(sampling.seed),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        biases=_biases(sampling, num_prompt_tokens, stop_token_ids, vocab_size),
        num_prompt_tokens=num_prompt_tokens,
        num_logprobs=sampling.logprobs,
        num_prompt_logprobs=sampling.prompt_logprobs,
    )


def _biases(
    sampling: SamplingParams, num_prompt_tokens: int, stop_token_ids: Iterable[int], vocab_size: int
) -> tuple[TokenBias, ...]:
    wrong = next((token for token, _ in sampling.logit_bias if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise RequestError(
            f"logit_bias holds token {wrong}; this model's tokens are 0 to {vocab_size - 1}", "logit_bias"
        )
    biases = [TokenBias(token, value) for token, value in sampling.logit_bias if value]
    if sampling.min_tokens > 0:
        first_stop = num_prompt_tokens + sampling.min_tokens
        stops = (token for token in stop_token_ids if 0 <= token < vocab_size)
        biases += [TokenBias(token, -math.inf, first_stop) for token in stops]
    if len(biases) > MAX_BIASES:
        raise RequestError(
            f"logit_bias and the stop tokens that min_tokens holds back are {len(biases)} together; "
            f"allowed: {MAX_BIASES}",
            "logit_bias",
        )
    return tuple(biases)


def _fold(seed: int) -> int:
    """Any integer seed as 31 bits, so that it fits the device's int32."""
    return (seed ^ (seed >> 31) ^ (seed >> 62)) & 0x7FFFFFFF
