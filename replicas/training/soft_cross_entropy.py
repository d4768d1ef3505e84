"""The draft head's largest product and its loss in one pass, a few rows at a time.

Scores of 1024 rows over 8192 tokens are 32 MB; every pointwise pass over them would go through memory. In blocks that
stay in the cache the same passes are nearly free, so forward makes the gradients too (as Liger's fused linear
cross-entropy does) and backward only scales them.
"""

from typing import Any

import torch
from torch import Tensor

ROWS_AT_ONCE = 64


class _SoftCrossEntropy(torch.autograd.Function):
    """See `soft_cross_entropy`."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, wanted: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        rounded, inputs = weight.to(wanted.dtype), hidden.to(wanted.dtype)
        loss, best = hidden.new_zeros(()), torch.empty(len(rows), dtype=torch.int64)
        wrong = torch.empty(len(rows), len(weight), dtype=wanted.dtype)
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            block = slice(begin, begin + ROWS_AT_ONCE)
            scores, labels = (inputs[block] @ rounded.T).to(hidden.dtype), wanted[rows[block]]
            best[block] = scores.argmax(-1)
            normalizer = scores.logsumexp(-1, keepdim=True)
            loss += normalizer.sum() - torch.dot(scores.flatten(), labels.flatten().to(scores.dtype))
            torch.sub(scores.sub_(normalizer).exp_(), labels, out=scores)
            wrong[block] = scores
        ctx.save_for_backward((wrong @ rounded).to(hidden.dtype), (wrong.T @ inputs).to(weight.dtype))
        ctx.mark_non_differentiable(best)
        return loss, best

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * grad_outputs[0], of_weight * grad_outputs[0], None, None


def soft_cross_entropy(hidden: Tensor, weight: Tensor, wanted: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(sum of the cross-entropies [], best draft ids [n]) of scores `hidden` @ `weight`.T against soft labels.

    `hidden` [n, hidden], `weight` [draft vocabulary, hidden] float32; `wanted` [labels, draft vocabulary]
    probabilities, whose dtype is that of the products; `rows` [n]: the label of each row of `hidden`.
    """
    loss, best = _SoftCrossEntropy.apply(hidden, weight, wanted, rows)  # pyright: ignore[reportGeneralTypeIssues]
    return loss, best


@torch.no_grad()
def target_probabilities(final: Tensor, labels_head: Tensor) -> Tensor:
    """The target's probabilities over the draft vocabulary, [rows, draft vocabulary], in the dtype of `labels_head`.

    `final` [rows, hidden]: its normed last states; `labels_head` [draft vocabulary, hidden]: its head's rows.
    """
    dtype = labels_head.dtype
    blocks = [(block.to(dtype) @ labels_head.T).float().softmax(-1).to(dtype) for block in final.split(ROWS_AT_ONCE)]
    return torch.cat(blocks)
