"""Decoding without a cache: the whole sequence is run again for every token."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaForCausalLM


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
