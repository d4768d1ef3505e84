"""The two ends of a model whose rows are tokens: embedding and head, each rank with a part of the vocabulary."""

import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices.device_backend import DeviceBackend
from replicas.devices.selection import argmax
from replicas.models.sharding import RankShare, RankSlice


def vocabulary_part(vocab_size: int, backend: DeviceBackend) -> RankSlice:
    """Rows that this rank keeps of an embedding or a head of `vocab_size` tokens."""
    return RankShare.of(backend.collectives).even(vocab_size, backend.vocab_multiple)


class Embedding:
    """Token ids [rows] int32 -> [rows, hidden], the same on all ranks."""

    def __init__(self, part: Tensor, backend: DeviceBackend) -> None:
        """`part` [rows of this rank, hidden]."""
        self._part = backend.place(part)
        self._collectives = backend.collectives
        self._rank = rank_tensor(backend)

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens of all ranks, padding among them, and the hidden size."""
        rows, hidden = self._part.shape
        return rows * self._collectives.size, hidden

    def __call__(self, token_ids: Tensor) -> Tensor:
        if self._collectives.size == 1:
            return functional.embedding(token_ids, self._part)
        last = len(self._part) - 1
        local = token_ids - self._rank * len(self._part)
        inside = local.clamp(0, last)
        rows = functional.embedding(inside, self._part)
        # Exactly one rank has the token: the others add zeros.
        return self._collectives.sum(torch.where((inside == local)[:, None], rows, torch.zeros_like(rows)))


class VocabularyHead:
    """Scores of `vocab_size` tokens for states [rows, hidden], the same on all ranks."""

    def __init__(self, part: Tensor, vocab_size: int, backend: DeviceBackend) -> None:
        """`part` [rows of this rank, hidden]; the last ranks' may end with padding."""
        self._product = backend.linear(part)
        self._rows = len(part)
        self._vocab_size = vocab_size
        self._collectives = backend.collectives
        self._rank = rank_tensor(backend)

    def logits(self, states: Tensor) -> Tensor:
        """[rows, vocab], gathered: for whoever needs more than the best."""
        return self._collectives.gather(self._product(states))[:, : self._vocab_size]

    def best(self, states: Tensor, below: int | None = None) -> Tensor:
        """The likeliest token [rows] int32, of those with ids under `below` if given; of equal ones the first.

        Ranks exchange a score and an index a row, never the logits.
        """
        count = self._vocab_size if below is None else min(below, self._vocab_size)
        scores = self._product(states)
        if self._collectives.size == 1:
            return argmax(scores[:, :count])
        first = self._rank * self._rows
        index = torch.arange(self._rows, dtype=torch.int32, device=scores.device) + first
        scores = torch.where(index < torch.full_like(index, count), scores, -torch.inf)
        mine, at = scores.amax(-1), argmax(scores) + first
        best = self._collectives.maximum(mine)
        return self._collectives.minimum(torch.where(mine == best, at, count))


def rank_tensor(backend: DeviceBackend) -> Tensor:
    """[1] int32 on the device: an input of programs, which a number would make other ones on every rank."""
    # Not a scalar, which XLA would build into the graph for ranks 0 and 1.
    return backend.place(torch.tensor([backend.collectives.rank], dtype=torch.int32))
