"""Packing sequences into the tensors of a program."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from replicas.kv_cache.paged_cache import NULL_BLOCK, CacheView
from replicas.rejection.adjustments import LogitAdjustments
from replicas.rejection.sampling import SamplingInputs
from replicas.runner.adjustment_inputs import pack_adjustments
from replicas.runner.interleaved_drafts import InterleavedDrafts
from replicas.runner.programs import ProgramKey
from replicas.scheduling.step_plan import SequencePlan


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """What one device program takes; int32 throughout, padding rows have position -1."""

    token_ids: Tensor
    """[batch, tokens]."""
    positions: Tensor
    """[batch, tokens]."""
    block_tables: Tensor
    """[batch, blocks]; the null block beyond a sequence's own."""
    choice_rows: Tensor
    """[batch, choices]: the rows after which the target chooses a token: 1 + K when decoding, one after a prompt."""
    draft_ids: Tensor
    """[batch, choices - 1]."""
    num_drafts: Tensor
    """[batch]."""
    next_prompt_ids: Tensor
    """[batch, tokens]: the prompt's token after each row; -1 where the target's choice is the next token."""
    sampling: SamplingInputs | None
    adjustments: LogitAdjustments | None
    wants_logprobs: bool
    wants_prompt_logprobs: bool
    view: CacheView | None

    @property
    def wants_only_the_best(self) -> bool:
        """The target's choice is its argmax, and nobody looks at scores."""
        return self.sampling is None and self.adjustments is None and not self.wants_logprobs


def pack(parts: tuple[SequencePlan, ...], key: ProgramKey, block_size: int, vocab_size: int) -> BatchInputs:
    """Tensors of `parts` for program `key`, which decides their shapes. Without parts all rows are padding."""
    rows, tokens, blocks, choices = key.batch, key.tokens, key.context_blocks, key.choices
    token_ids = np.zeros((rows, tokens), np.int32)
    positions = np.full((rows, tokens), -1, np.int32)
    next_prompt_ids = np.full((rows, tokens), -1, np.int32)
    tables = np.full((rows, blocks), NULL_BLOCK, np.int32)
    choice_rows = np.tile(np.arange(choices, dtype=np.int32), (rows, 1))
    draft_ids = np.zeros((rows, choices - 1), np.int32)
    num_drafts = np.zeros(rows, np.int32)
    for row, part in enumerate(parts):
        count = len(part.token_ids)
        token_ids[row, :count] = part.token_ids
        positions[row, :count] = np.arange(part.start, part.start + count)
        tables[row, : len(part.block_table)] = part.block_table
        num_drafts[row] = part.num_drafts
        if key.is_prefill:
            next_prompt_ids[row, : count - 1] = part.token_ids[1:]
            next_prompt_ids[row, count - 1] = -1 if part.next_prompt_token is None else part.next_prompt_token
    ends = [row * tokens + len(part.token_ids) for row, part in enumerate(parts)]
    interleaved = InterleavedDrafts.of(ends, [part.num_drafts for part in parts])
    drafted = interleaved.draft_token_ids(token_ids.ravel())
    for row, (part, bonus) in enumerate(zip(parts, interleaved.bonus_logits_indices, strict=True)):
        count, total = part.num_drafts, interleaved.cu_num_draft_tokens[row]
        choice_rows[row, : count + 1] = np.subtract(interleaved.logits_indices[bonus - count : bonus + 1], row * tokens)
        draft_ids[row, :count] = drafted[total - count : total]
    return BatchInputs(
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        block_tables=torch.from_numpy(tables),
        choice_rows=torch.from_numpy(choice_rows),
        draft_ids=torch.from_numpy(draft_ids),
        num_drafts=torch.from_numpy(num_drafts),
        next_prompt_ids=torch.from_numpy(next_prompt_ids),
        sampling=_sampling(parts, key),
        adjustments=pack_adjustments(parts, key, block_size, vocab_size),
        wants_logprobs=key.variant.has_logprobs,
        wants_prompt_logprobs=key.variant.has_prompt_logprobs,
        view=CacheView((parts[0].block_table[0] if parts else NULL_BLOCK) * block_size) if key.is_in_place else None,
    )


def _sampling(parts: tuple[SequencePlan, ...], key: ProgramKey) -> SamplingInputs | None:
    if key.variant.sampling == "greedy":
        return None
    choices = [part.choice for part in parts]
    # Padding rows are greedy.
    padding = key.batch - len(parts)
    return SamplingInputs(
        temperature=torch.tensor([c.temperature for c in choices] + [0.0] * padding),
        top_k=torch.tensor([c.top_k for c in choices] + [0] * padding, dtype=torch.int32),
        top_p=torch.tensor([c.top_p for c in choices] + [1.0] * padding),
        min_p=torch.tensor([c.min_p for c in choices] + [0.0] * padding),
        seed=torch.tensor([c.seed for c in choices] + [0] * padding, dtype=torch.int32),
        is_filtered=key.variant.sampling == "filtered",
    )
