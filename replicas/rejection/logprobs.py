"""Log-probabilities of chosen tokens and of the most likely ones beside them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.devices.selection import largest
from replicas.request import MAX_LOGPROBS


@dataclass(frozen=True, slots=True)
class LogprobOutputs:
    """One row a position; rows are [batch * choices], or the tokens of a prompt's chunk."""

    chosen: Tensor
    """[rows] float32: of the token that follows."""
    top_ids: Tensor
    """[rows, MAX_LOGPROBS] int32, the most likely first; fewer if the vocabulary is smaller."""
    top: Tensor
    """[rows, MAX_LOGPROBS] float32."""


def logprobs(logits: Tensor, token_ids: Tensor) -> LogprobOutputs:
    """Of raw `logits` [rows, vocab] and of the tokens `token_ids` [rows]; where those are -1 `chosen` means nothing.

    Always MAX_LOGPROBS alternatives, whatever the requests ask for: one shape for all of them.
    """
    scores = torch.log_softmax(logits.float(), -1)
    chosen = scores.gather(1, token_ids.clamp(min=0)[:, None]).squeeze(1)
    top, top_ids = largest(scores, min(MAX_LOGPROBS, scores.shape[1]))
    return LogprobOutputs(chosen, top_ids, top)
