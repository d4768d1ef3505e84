"""Penalties, biases and grammars on the logits of every verified position, as if the drafts before it were accepted.

The order is vLLM's: biases, then repetition, frequency and presence penalties; what a grammar forbids comes last.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BiasInputs:
    """Sparse additions to logits, each [batch, entries] on the device; unused entries add 0 to token 0."""

    token_ids: Tensor
    values: Tensor
    """float32."""
    until: Tensor
    """An entry counts where the position of the chosen token is below this."""


@dataclass(frozen=True, slots=True)
class PenaltyInputs:
    """The sequences' tokens and their penalties, on the device. Rows of 0, 0 and 1 are left bit for bit as they are."""

    history: Tensor
    """[batch, length] int32: tokens so far, without drafts; -1 after the end."""
    num_prompt_tokens: Tensor
    """[batch] int32: how many of them are the prompt's."""
    presence: Tensor
    """[batch] float32, like the two below."""
    frequency: Tensor
    repetition: Tensor


@dataclass(frozen=True, slots=True)
class LogitAdjustments:
    """What the sequences of a batch want changed; None where none of them asks."""

    biases: BiasInputs | None
    penalties: PenaltyInputs | None
    masks: Tensor | None = None
    """[batch, choices, ceil(vocab / 32)] int32: bit i % 32 of word i // 32 says whether token i may be chosen."""


def adjust(logits: Tensor, positions: Tensor, draft_ids: Tensor, adjustments: LogitAdjustments) -> Tensor:
    """Adjusted copies of `logits` [batch * choices, vocab], float32.

    `positions` [batch, choices] are those of the chosen tokens; choice i follows drafts 0..i-1 of `draft_ids`
    [batch, choices - 1].
    """
    batch, choices = positions.shape
    scores = logits.float().view(batch, choices, -1)
    if adjustments.biases is not None:
        scores = _biased(scores, positions, adjustments.biases)
    if adjustments.penalties is not None:
        scores = _penalised(scores, draft_ids, adjustments.penalties)
    if adjustments.masks is not None:
        scores = _masked(scores, adjustments.masks)
    return scores.view(logits.shape)


def _masked(scores: Tensor, masks: Tensor) -> Tensor:
    bits = torch.arange(32, device=masks.device, dtype=torch.int32)
    # Shifts of int32 are arithmetic; the lowest bit is right all the same. Not >>: torch_xla makes it a division, which
    # rounds negative words towards 0.
    allowed = (torch.bitwise_right_shift(masks[..., None], bits) & 1).flatten(2)[..., : scores.shape[2]]
    return torch.where(allowed == torch.ones_like(allowed), scores, -torch.inf)


def _biased(scores: Tensor, positions: Tensor, biases: BiasInputs) -> Tensor:
    counts = positions[:, :, None] < biases.until[:, None, :]
    values = torch.where(counts, biases.values[:, None, :], 0.0)
    return scores.scatter_add(2, biases.token_ids[:, None, :].expand(values.shape), values)


def _penalised(scores: Tensor, draft_ids: Tensor, penalties: PenaltyInputs) -> Tensor:
    batch, choices, vocabulary = scores.shape
    index = torch.arange(penalties.history.shape[1], device=scores.device, dtype=torch.int32)
    is_prompt = index < penalties.num_prompt_tokens[:, None]
    ids = penalties.history.clamp(min=0)
    is_token = penalties.history == ids

    def counted(tokens: Tensor) -> Tensor:
        zeros = torch.zeros(batch, vocabulary, device=scores.device)
        return zeros.scatter_add(1, ids, tokens.float())[:, None, :]

    # Choice i counts the drafts before it: if one of them was wrong, nobody uses the choice.
    order = torch.arange(choices, device=scores.device, dtype=torch.int32)
    is_before = (order[: choices - 1] < order[:, None]).float().expand(batch, choices, choices - 1)
    drafts = draft_ids[:, None, :].expand(batch, choices, choices - 1)
    output_counts = counted(is_token & ~is_prompt).expand(scores.shape).scatter_add(2, drafts, is_before)
    none = torch.zeros_like(output_counts)
    is_seen = (output_counts > none) | (counted(is_token & is_prompt) > none)
    repetition = penalties.repetition[:, None, None]
    scores = torch.where(is_seen, torch.where(scores > none, scores / repetition, scores * repetition), scores)
    scores = scores - penalties.frequency[:, None, None] * output_counts
    return scores - penalties.presence[:, None, None] * (output_counts > none).float()
