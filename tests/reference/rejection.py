"""Rejection and filtered sampling as plain loops and sorts in NumPy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
