"""The largest scores of a row: torch's operators on the CPU, maxima alone in a static graph.

XLA makes a sort of topk and an int64 reduction over pairs of argmax; Neuron's compiler has neither of them for
certain. All forms give int32 and, of equal scores, the first.
"""

import torch
from torch import Tensor


def argmax(scores: Tensor) -> Tensor:
    """Index [rows] int32 of the largest of `scores` [rows, count]; none of them may be NaN."""
    if scores.device.type == "cpu":
        return scores.argmax(-1).to(torch.int32)
    return _first(scores, scores.amax(-1, keepdim=True))


def largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of float `scores` [rows, n], best first: values [rows, count] and int32 indices."""
    if scores.device.type == "cpu":
        best, at = scores.topk(count, -1)
        return best, at.to(torch.int32)
    index = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    values: list[Tensor] = []
    indices: list[Tensor] = []
    for _ in range(count):
        values.append(scores.amax(-1))
        indices.append(_first(scores, values[-1][:, None]))
        scores = torch.where(index == indices[-1][:, None], -torch.inf, scores)
    return torch.stack(values, 1), torch.stack(indices, 1)


def _first(scores: Tensor, best: Tensor) -> Tensor:
    """Index [rows] of the first of `scores` that is `best` [rows, 1]."""
    count = scores.shape[1]
    index = torch.arange(count, dtype=torch.int32, device=scores.device)
    return torch.where(scores == best, index, count).amin(-1)
