"""From a request's SamplingParams to vLLM's."""

import json
from typing import Any

from replicas.errors import RequestError
from replicas.request import Grammar, SamplingParams

SAME = (
    "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
    "min_tokens", "max_tokens", "ignore_eos", "logprobs", "prompt_logprobs",
)  # fmt: skip
"""Spelled alike, and of the same meaning."""


def sampling_values(sampling: SamplingParams) -> dict[str, Any]:
    """The fields of vLLM's SamplingParams, `structured_outputs` as a mapping.

    Raises RequestError for a K of the request's own, which vLLM does not have.
    """
    if sampling.num_speculative_tokens is not None:
        raise RequestError(
            "vLLM, which serves this model, has one K for all requests; allowed: a request without it", "speculation"
        )
    values: dict[str, Any] = {name: getattr(sampling, name) for name in SAME}
    values["stop"] = list(sampling.stop)
    values["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        values["logit_bias"] = dict(sampling.logit_bias)
    if sampling.grammar is not None:
        values["structured_outputs"] = _structure(sampling.grammar)
    return values


def _structure(grammar: Grammar) -> dict[str, Any]:
    """Fields of vLLM's StructuredOutputsParams; without free white space in JSON, as in our own engine."""
    if grammar.kind == "json_schema":
        return {"json": grammar.text, "disable_any_whitespace": True}
    if grammar.kind == "choice":
        return {"choice": json.loads(grammar.text)}
    return {grammar.kind: grammar.text}
