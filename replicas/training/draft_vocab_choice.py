"""Which tokens the head may draft: the most widespread ones of the target's answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.training.shards import Conversation

USER_TURN_WEIGHT = 0.3


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """Draft ids in ascending order of their target ids."""

    target_ids: Tensor
    """[draft vocabulary] int64, ascending."""
    vocab_size: int
    """Of the target."""

    @property
    def d2t(self) -> Tensor:
        """[draft vocabulary] int64: target id = draft id + d2t[draft id]."""
        return self.target_ids - torch.arange(len(self.target_ids))

    @property
    def t2d(self) -> Tensor:
        """[vocabulary] bool: the target ids that can be drafted."""
        drafted = torch.zeros(self.vocab_size, dtype=torch.bool)
        drafted[self.target_ids] = True
        return drafted

    @property
    def draft_ids(self) -> Tensor:
        """[vocabulary] int64: draft id of each target id, -1 outside."""
        ids = torch.full((self.vocab_size,), -1)
        ids[self.target_ids] = torch.arange(len(self.target_ids))
        return ids

    def coverage(self, conversations: Sequence[Conversation]) -> float:
        """Share of the answers' tokens that can be drafted."""
        answers = torch.cat([c.tokens[c.answer_start :] for c in conversations])
        return float(self.t2d[answers].float().mean())


def most_widespread(conversations: Sequence[Conversation], size: int, vocab_size: int) -> DraftVocab:
    """The `size` tokens seen in the most conversations; an answer counts fully, a user's turn a little.

    Conversations and not occurrences: a small model's loops repeat a few tokens hundreds of times.
    """
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for conversation in conversations:
        start = conversation.answer_start
        counts[conversation.tokens[start:].unique()] += 1
        counts[conversation.tokens[conversation.user_start : start].unique()] += USER_TURN_WEIGHT
    # Byte-pair ids are handed out by frequency in the tokenizer's corpus: a prior for tokens not seen yet.
    counts -= torch.arange(vocab_size, dtype=torch.float64) / (100 * vocab_size)
    return DraftVocab(counts.topk(min(size, vocab_size)).indices.sort().values, vocab_size)
