"""Temperature, top-k, top-p and min-p without a sort: thresholds by bisection, which a static graph can hold."""

import torch
from torch import Tensor

SMALLEST, ABOVE_ALL = 2.0**-126, 2.0
"""The smallest normal float32, below which a probability counts as 0, and a threshold that no probability reaches."""
BISECTIONS = 32
"""Each halves the logarithm of high / low: from 2**127 to one unit in the last place of float32."""


def filtered_probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Probabilities [rows, vocab] float32 after temperature, then top-k, top-p and min-p; each parameter is [rows].

    top_k 0, top_p 1 and min_p 0 cut nothing. Tokens that tie with the last one kept are kept too. Not normalised:
    only ratios matter to whoever draws from them.
    """
    probabilities = torch.softmax(logits / temperature[:, None], -1)
    best = probabilities.amax(-1, keepdim=True)
    wanted = torch.where(top_k > torch.zeros_like(top_k), top_k, logits.shape[1]).float()[:, None]
    kth = _largest_threshold(probabilities, torch.ones_like(probabilities), wanted)
    probabilities = torch.where(probabilities >= kth, probabilities, 0.0)
    # A hair below the asked mass: rounding of the sum must not push the threshold one token too low.
    mass = (top_p[:, None] * probabilities.sum(-1, keepdim=True)) * (1 - 1e-6)
    # At top_p 0 no mass is asked for; the best token stays all the same. At 1 everything stays.
    nucleus = torch.minimum(_largest_threshold(probabilities, probabilities, mass), best)
    nucleus = torch.where(top_p[:, None] >= torch.ones_like(nucleus), 0.0, nucleus)
    floor = torch.maximum(nucleus, min_p[:, None] * best)
    return torch.where(probabilities >= floor, probabilities, 0.0)


def _largest_threshold(probabilities: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """Per row the largest t, to float32's last place, with sum(weights where probability >= t) >= `wanted` [rows, 1].

    SMALLEST if there is none. The middle is the geometric one, made with square roots because every device rounds
    those alike.
    """
    low, high = torch.full_like(wanted, SMALLEST), torch.full_like(wanted, ABOVE_ALL)
    for _ in range(BISECTIONS):
        middle = low.sqrt() * high.sqrt()
        enough = torch.where(probabilities >= middle, weights, 0.0).sum(-1, keepdim=True) >= wanted
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low
