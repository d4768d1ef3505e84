"""Accepting drafts: pure tensor operations, the same for greedy and sampled sequences."""

import torch
from torch import Tensor


def reject(draft_ids: Tensor, num_drafts: Tensor, target_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Accept drafts up to the first that the target did not choose itself (first seed, "Rejection Sampling").

    `draft_ids` [batch, K], of which `num_drafts` [batch] are real; `target_ids` [batch, K + 1] is what the target chose
    after each verified token. Returns emitted tokens [batch, K + 1], -1 after the end, and how many drafts were
    accepted [batch]. The last emitted token is the recovered one at a mismatch, or the bonus after K accepted.
    """
    num_slots = draft_ids.shape[1]
    index = torch.arange(num_slots + 1, device=target_ids.device, dtype=torch.int32)
    drafted = index[:num_slots]
    matches = (draft_ids == target_ids[:, :num_slots]) & (drafted < num_drafts[:, None])
    # The first mismatch as a minimum, since cumprod of a mask would leave the device on XLA.
    accepted = torch.where(matches, num_slots, drafted).amin(1) if num_slots else torch.zeros_like(num_drafts)
    emitted = torch.where(index <= accepted[:, None], target_ids, -1)
    return emitted, accepted
