"""How far a head's drafts agree with what the target emitted: acceptance on held-out conversations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.training.head_module import DraftHead
from replicas.training.shards import Conversation, PackedBatch, pack
from replicas.training.unroll import unroll

CONVERSATIONS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Greedy drafting over held-out answers."""

    per_position: tuple[float, ...]
    """Share of drafts accepted at draft position 1, 2, ... among those whose earlier positions were accepted."""
    mean_acceptance_length: tuple[float, ...]
    """At K = 1, 2, ...: tokens emitted a step, when an engine walks the answers."""
    first_drafts: int
    """Positions that were drafted from."""


@torch.inference_mode()
def accepted_counts(
    head: DraftHead, embedding: Tensor, draft_ids: Tensor, batch: PackedBatch, max_drafts: int
) -> tuple[Tensor, Tensor]:
    """Drafts accepted from each chain's start [chains] and drafts that could be checked [chains], to `max_drafts`."""
    accepted = torch.zeros(int(batch.bounds[-1]), dtype=torch.int64)

    def draft(normed: Tensor, _rows: Tensor) -> Tensor:
        return head.lm_head(normed).argmax(-1)

    for step in unroll(head, embedding, draft_ids, batch, max_drafts, draft):
        accepted[step.chains[step.hits]] += 1
    ends = batch.bounds[1:][torch.searchsorted(batch.bounds[1:], batch.chains, right=True)]
    return accepted[batch.chains], (ends - 1 - batch.chains).clamp(max=max_drafts)


def walk(accepted: Sequence[int], max_drafts: int) -> tuple[int, int]:
    """(tokens emitted, steps) when an engine drafts `max_drafts` a step along one answer.

    `accepted` [n] holds the drafts accepted from each start in turn. A step emits the accepted drafts and one more
    token, or what is left of the answer.
    """
    at = steps = tokens = 0
    while at < len(accepted):
        advance = min(accepted[at], max_drafts) + 1
        tokens += min(advance, len(accepted) - at)
        steps += 1
        at += advance
    return tokens, steps


def measure(
    head: DraftHead, embedding: Tensor, draft_ids: Tensor, conversations: Sequence[Conversation], max_drafts: int
) -> Acceptance:
    """Acceptance over `conversations` for up to `max_drafts` draft tokens."""
    reached, hits = [0] * max_drafts, [0] * max_drafts
    walks = [(0, 0)] * max_drafts
    for batch in packed_groups(conversations, head.config.hidden_size):
        accepted, checkable = accepted_counts(head, embedding, draft_ids, batch, max_drafts)
        for position in range(max_drafts):
            reached[position] += int(((accepted >= position) & (checkable > position)).sum())
            hits[position] += int((accepted > position).sum())
        conversation_of = torch.searchsorted(batch.bounds[1:], batch.chains, right=True)
        for run in accepted.split(torch.bincount(conversation_of).tolist()):
            for position in range(max_drafts):
                tokens, steps = walk(run.tolist(), position + 1)
                walks[position] = walks[position][0] + tokens, walks[position][1] + steps
    return Acceptance(
        per_position=tuple(hit / max(1, tried) for hit, tried in zip(hits, reached, strict=True)),
        mean_acceptance_length=tuple(tokens / max(1, steps) for tokens, steps in walks),
        first_drafts=reached[0],
    )


def packed_groups(conversations: Sequence[Conversation], hidden_size: int) -> Iterator[PackedBatch]:
    """All conversations with something to draft, a group at a time."""
    drafted = [c for c in conversations if c.num_drafts]
    for begin in range(0, len(drafted), CONVERSATIONS_AT_ONCE):
        yield pack(drafted[begin : begin + CONVERSATIONS_AT_ONCE], hidden_size)


def greedy_only(conversations: Sequence[Conversation], lm_head: Tensor) -> list[Conversation]:
    """Those whose answer is the target's greedy one. `lm_head` [vocabulary, hidden] is the target's.

    States are stored in fp16, so a near-tie may flip: one token in fifty may differ.
    """
    greedy: list[Conversation] = []
    for conversation in conversations:
        start, hidden = conversation.answer_start, lm_head.shape[1]
        final = conversation.states[start - 1 : -1, -hidden:].float()
        agree = (final @ lm_head.T).argmax(-1) == conversation.tokens[start:]
        if conversation.num_drafts and float(agree.float().mean()) >= 0.98:
            greedy.append(conversation)
    return greedy
