"""Rejection and filtered sampling as plain loops and sorts in NumPy."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replicas.request import SamplingParams

Floats = NDArray[np.float64]


def accept(drafts: Sequence[int], chosen: Sequence[int]) -> tuple[list[int], int]:
    """Emitted tokens and accepted count of one sequence: `chosen` is the target's token after each verified one."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == chosen[accepted]:
        accepted += 1
    return [*drafts[:accepted], chosen[accepted]], accepted


def softmax(logits: Floats, temperature: float) -> Floats:
    """Probabilities of one row."""
    scaled = np.asarray(logits, np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def filtered(probabilities: Floats, top_k: int, top_p: float, min_p: float) -> Floats:
    """`probabilities` of one row after top-k, then top-p of what is left, then min-p; ties with the last kept stay.

    Not normalised, as `filtered_probabilities` leaves it.
    """
    kept = np.array(probabilities, np.float64)
    if 0 < top_k < len(kept):
        kept[kept < np.sort(kept)[::-1][top_k - 1]] = 0.0
    largest = kept.max()
    if top_p < 1.0:
        descending = np.sort(kept)[::-1]
        mass = np.cumsum(descending)
        last = int(np.argmax(mass >= top_p * mass[-1] * (1 - 1e-6)))
        kept[kept < descending[last]] = 0.0
    kept[kept < min_p * largest] = 0.0
    return kept


def noise(seed: int, position: int, vocabulary: int) -> Floats:
    """Exponential noise of one row: the hash of `exponential_noise` in unsigned arithmetic."""
    tokens = np.arange(vocabulary, dtype=np.uint64)
    row = _mix(_mix(_word(seed * 0x9E3779B9)) ^ _word(position * 1664525))
    bits = _mix(_mix(_word(tokens * np.uint64(0x9E3779B9) + row)) ^ row)
    uniform = ((bits & np.uint64(0x7FFFFFFF)).astype(np.float64) + 0.5) / 2.0**31
    return -np.log1p(-np.minimum(uniform, 1.0 - 2.0**-24))


def choose(logits: Floats, position: int, sampling: SamplingParams) -> int:
    """The token at `position`: argmax, or the winner of the race that the seed (below 2**31) sets up."""
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    assert sampling.seed is not None
    kept = filtered(softmax(logits, sampling.temperature), sampling.top_k, sampling.top_p, sampling.min_p)
    return int(np.argmax(kept / noise(sampling.seed, position, len(kept))))


def adjusted(
    logits: Floats, prompt: Sequence[int], output: Sequence[int], sampling: SamplingParams, stops: Iterable[int]
) -> Floats:
    """`logits` of the token after `prompt` and `output`, changed token by token as vLLM's documentation says."""
    scores = np.array(logits, np.float64)
    for token, value in sampling.logit_bias:
        scores[token] += value
    if len(output) < sampling.min_tokens:
        scores[list(stops)] = -np.inf
    for token in range(len(scores)):
        count = list(output).count(token)
        if count or token in prompt:
            penalty = sampling.repetition_penalty
            scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
        scores[token] -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
    return scores


def _word(values: Any) -> Any:
    """The low 32 bits."""
    return np.asarray(values).astype(np.uint64) & np.uint64(0xFFFFFFFF)


def _mix(bits: Any) -> Any:
    """murmur3's 32-bit finalizer."""
    bits = _word((bits ^ (bits >> np.uint64(16))) * np.uint64(0x85EBCA6B))
    bits = _word((bits ^ (bits >> np.uint64(13))) * np.uint64(0xC2B2AE35))
    return bits ^ (bits >> np.uint64(16))
