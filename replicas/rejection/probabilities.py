"""Temperature, top-k, top-p and min-p without a sort: thresholds by bisection, which a static graph can hold."""

import torch
from torch import Tensor

BITS = 32


def filtered_probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Probabilities [rows, vocab] float32 after temperature, then top-k, top-p and min-p; each parameter is [rows].

    top_k 0, top_p 1 and min_p 0 cut nothing. Tokens that tie with the last one kept are kept too. Not normalised:
    only ratios matter to whoever draws from them.
    """
    probabilities = torch.softmax(logits / temperature[:, None], -1)
    keys = _ordered_bits(probabilities)
    vocabulary = logits.shape[1]
    wanted = torch.where(top_k > 0, top_k, vocabulary).float()[:, None]
    kth = _largest_threshold(keys, torch.ones_like(probabilities), wanted)
    probabilities = torch.where(keys >= kth, probabilities, 0.0)
    # A hair below the asked mass: rounding of the sum must not push the threshold one token too low.
    mass = (top_p[:, None] * probabilities.sum(-1, keepdim=True)) * (1 - 1e-6)
    # At top_p 0 no mass is asked for; the best token stays all the same.
    nucleus = torch.minimum(_largest_threshold(keys, probabilities, mass), keys.amax(-1, keepdim=True))
    floor = min_p[:, None] * probabilities.amax(-1, keepdim=True)
    keep = ((keys >= nucleus) | (top_p[:, None] >= 1.0)) & (probabilities >= floor)
    return torch.where(keep, probabilities, 0.0)


def _ordered_bits(values: Tensor) -> Tensor:
    """int32 keys in the order of non-negative float32 `values`."""
    return values.view(torch.int32)


def _largest_threshold(keys: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """Per row the largest key t with sum(weights where key >= t) >= wanted; keys are in 0 .. 2**30."""
    low = torch.zeros_like(wanted, dtype=torch.int32)
    high = torch.full_like(low, 1 << 30)
    for _ in range(BITS - 1):
        middle = low + (high - low + 1) // 2
        enough = torch.where(keys >= middle, weights, 0.0).sum(-1, keepdim=True) >= wanted
        low = torch.where(enough, middle, low)
        high = torch.where(enough, high, middle - 1)
    return low
