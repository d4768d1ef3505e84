"""Decoding without a cache: the whole sequence is run again for every token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from replicas.request import SamplingParams
from tests.reference.rejection import Floats, adjusted, choose, softmax


@torch.no_grad()
def full_logits(model: LlamaForCausalLM, token_ids: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] after each of `token_ids`."""
    return model(torch.tensor([list(token_ids)]), use_cache=False).logits[0]


@torch.no_grad()
def layer_inputs(model: LlamaForCausalLM, token_ids: Sequence[int]) -> list[Tensor]:
    """Hidden states [tokens, hidden] before each layer and, last, after the last one (before the final norm)."""
    states: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0][0])) for layer in model.model.layers
    ]
    hooks.append(model.model.norm.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0][0])))
    model(torch.tensor([list(token_ids)]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return states


def greedy(model: LlamaForCausalLM, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` greedy tokens after `prompt`; nothing ends them early."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(int(full_logits(model, token_ids)[-1].argmax()))
    return tuple(token_ids[len(prompt) :])


@dataclass(frozen=True)
class Continuation:
    """Tokens after a prompt, with the target's raw log-probabilities [vocab] at each, in float64."""

    token_ids: list[int]
    logprobs: list[Floats]


def sampled(
    model: LlamaForCausalLM, prompt: Sequence[int], count: int, sampling: SamplingParams, stops: Iterable[int] = ()
) -> Continuation:
    """`count` tokens after `prompt` by the NumPy reference; min_tokens holds back `stops`, which end nothing."""
    stops, output, logprobs = tuple(stops), list[int](), list[Floats]()
    for _ in range(count):
        logits = full_logits(model, [*prompt, *output])[-1].double().numpy()
        logprobs.append(np.log(softmax(logits, 1.0)))
        scores = adjusted(logits, prompt, output, sampling, stops)
        output.append(choose(scores, len(prompt) + len(output), sampling))
    return Continuation(output, logprobs)
