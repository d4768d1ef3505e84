"""The target's choice at every verified position: argmax, or a draw whose noise depends on seed and position alone.

Drafts are deterministic (the drafter always takes its argmax), so accepting draft d with probability p(d) and else
drawing from p without d is the same as drawing x ~ p and accepting if x = d: one draw serves acceptance, recovery
and bonus. And since the noise of a position is fixed by the seed, a sampled text is the same for every K.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.devices.selection import argmax
from replicas.rejection.probabilities import filtered_probabilities

GREEDY_TEMPERATURE = 1e-5
"""Below it a draw is the argmax; dividing by it would overflow float32."""


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """Per sequence, each [batch] on the device."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    is_filtered: bool
    """False if no sequence of the batch uses top-k, top-p or min-p: a program without the bisections."""


def choose(logits: Tensor, positions: Tensor, sampling: SamplingInputs | None) -> Tensor:
    """Tokens [batch, choices] int32 from `logits` [batch * choices, vocab]; `positions` [batch, choices] are theirs.

    `sampling` None means that every sequence is greedy.
    """
    best = argmax(logits)
    if sampling is None:
        return best.view(positions.shape)
    choices = positions.shape[1]

    def per_row(values: Tensor) -> Tensor:
        return values[:, None].expand(-1, choices).flatten()

    temperature = per_row(sampling.temperature)
    is_greedy = temperature < torch.full_like(temperature, GREEDY_TEMPERATURE)
    temperature = torch.where(is_greedy, 1.0, temperature)
    if sampling.is_filtered:
        top_k, top_p, min_p = per_row(sampling.top_k), per_row(sampling.top_p), per_row(sampling.min_p)
        probabilities = filtered_probabilities(logits, temperature, top_k, top_p, min_p)
    else:
        probabilities = torch.softmax(logits / temperature[:, None], -1)
    waiting = exponential_noise(per_row(sampling.seed), positions.flatten(), logits.shape[1])
    drawn = argmax(probabilities / waiting)
    return torch.where(is_greedy, best, drawn).view(positions.shape)


def exponential_noise(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Exponential(1) noise [rows, vocabulary] float32, a function of seed [rows], position [rows] and token id only.

    A counter-based generator (murmur3's finalizer over int32) needs no state on host or device.
    """
    tokens = torch.arange(vocabulary, device=seeds.device, dtype=torch.int32)
    row_key = _mix(_mix(seeds.to(torch.int32) * -1640531527) ^ positions.to(torch.int32) * 1664525)
    bits = _mix(_mix(tokens * -1640531527 + row_key[:, None]) ^ row_key[:, None])
    # 31 bits, resolved most finely near 0, where the winner of the race is found.
    uniform = ((bits & 0x7FFFFFFF).to(torch.float32) + 0.5) * 2.0**-31
    return -torch.log1p(-uniform.clamp(max=1.0 - 2.0**-24))


def _mix(bits: Tensor) -> Tensor:
    """murmur3's 32-bit finalizer."""
    bits = bits ^ _shifted(bits, 16)
    bits = bits * -2048144789
    bits = bits ^ _shifted(bits, 13)
    bits = bits * -1028477387
    return bits ^ _shifted(bits, 16)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """int32 `bits`, shifted right and filled with zeros.

    The count is a tensor because torch_xla divides by a power of two for a Python number, which rounds towards 0.
    """
    arithmetic = torch.bitwise_right_shift(bits, torch.full((), count, dtype=torch.int32, device=bits.device))
    return arithmetic & ((1 << (32 - count)) - 1)
