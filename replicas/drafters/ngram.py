"""Drafting without a model: what followed the last time that the text ended like this (prompt lookup)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from replicas.drafters.drafter import ProposeInput
from replicas.kv_cache.paged_cache import slots_of


class NgramDrafter:
    """Finds the end of the text earlier in the text. Its "KV" is the token ids, in the target's blocks.

    So chunks, preemption and the prefix cache bring a text's tokens back as they bring its KV, and nothing but the
    block table comes from the host.
    """

    method = "ngram"
    tapped_layers: tuple[int, ...] = ()
    max_positions: int | None = None

    def __init__(
        self, shortest: int, longest: int, num_blocks: int, block_size: int, device: torch.device | None = None
    ) -> None:
        self._shortest, self._longest = shortest, longest
        self._block_size = block_size
        self.tensor = torch.zeros(num_blocks * block_size, dtype=torch.int32, device=device)
        """The token id of each slot."""
        self.states = (self,)

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        """See Drafter.propose."""
        tokens, positions = inputs.known_tokens()
        tables = inputs.block_tables
        self.tensor.index_put_((slots_of(positions, tables, self._block_size),), tokens.flatten())
        if num_speculative_tokens == 0:
            return inputs.last_row.new_empty(tables.shape[0], 0)
        blocks = self.tensor.view(-1, self._block_size).index_select(0, tables.flatten())
        history = blocks.view(tables.shape[0], -1)
        return look_up(history, positions.amax(1), num_speculative_tokens, self._shortest, self._longest)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """See Drafter.copy_blocks."""
        blocks = self.tensor.view(-1, self._block_size)
        sources, targets = torch.tensor(copies, device=blocks.device).unbind(1)
        blocks[targets] = blocks[sources]


def look_up(history: Tensor, newest: Tensor, count: int, shortest: int, longest: int) -> Tensor:
    """[batch, count] int32: what followed the longest match of the text's end, of `shortest` to `longest` tokens.

    `history` [batch, length] int32 holds anything after position `newest` [batch]. Of equally long matches the latest
    counts (vLLM takes the earliest, which was accepted less often). What followed it may end with the text itself: then
    it goes on with its own beginning, as a text does that repeats itself. -1 where nothing matches.
    """
    batch, length = history.shape
    index = torch.arange(length, device=history.device, dtype=torch.int32)
    end = newest[:, None]
    matches = index < end
    lengths = torch.zeros_like(history)
    # Of the token that lies `back` before each one. Nothing equals what lies before the text.
    earlier, beyond = history, history.new_full((batch, 1), -2)
    for back in range(longest):
        wanted = torch.where(index == end - back, history, -1).amax(1, keepdim=True)
        matches = matches & (earlier == wanted)
        lengths = lengths + matches.int()
        earlier = torch.cat([beyond, earlier[:, :-1]], 1)
    best = lengths.amax(1, keepdim=True).clamp(min=shortest)
    # Without a match this lies beyond every index, and stays there.
    start = torch.where(lengths == best, index, -1).amax(1, keepdim=True) + 1
    start = torch.where(start == 0, length, start)
    drafts: list[Tensor] = []
    at = start
    for _ in range(count):
        drafts.append(torch.where(index == at, history, -1).amax(1))
        at = torch.where(at == end, start, at + 1)
    return torch.stack(drafts, 1)
