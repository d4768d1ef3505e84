"""Drafting with an EAGLE3 head: refresh its KV from the target's states, then K tokens from its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from replicas.drafters.drafter import ProposeInput
from replicas.drafters.eagle3_head import Eagle3Head
from replicas.kv_cache.paged_cache import PagedCache


class Eagle3Drafter:
    """Two-phase propose of the first seed, "EagleProposer", as one program without a host read."""

    method = "eagle3"

    def __init__(self, head: Eagle3Head, cache: PagedCache) -> None:
        self.tapped_layers = head.tapped_layers
        self.max_positions: int | None = head.max_positions
        self._head = head
        self._cache = cache
        self.states = (cache,)

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        """See Drafter.propose. Drafts are greedy whatever the target's sampling (first seed, "Design Choices")."""
        head, cache = self._head, self._cache
        tables, view = inputs.block_tables, inputs.view
        batch = tables.shape[0]
        # Padding has token -1, which embeds as token 0 into the null block.
        tokens = inputs.next_token_ids.clamp(min=0).flatten()
        attention = head.rotary.attention_inputs(inputs.positions, tables, cache, view)
        states = head.forward(tokens, head.fuse(inputs.hidden_states), attention, cache)
        if num_speculative_tokens == 0:
            return inputs.last_row.new_empty(batch, 0)
        rows = torch.arange(batch, device=tables.device, dtype=torch.int32)
        last = rows * inputs.positions.shape[1] + inputs.last_row
        state, position = states.index_select(0, last), inputs.positions.flatten().index_select(0, last)
        drafts, nowhere = [head.draft(state)], torch.zeros_like(position)
        while len(drafts) < num_speculative_tokens:
            position = torch.where(position < nowhere, position, position + 1)
            attention = head.rotary.attention_inputs(position[:, None], tables, cache, view)
            state = head.forward(drafts[-1], state, attention, cache)
            drafts.append(head.draft(state))
        return torch.stack(drafts, 1)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """See Drafter.copy_blocks."""
        self._cache.copy_blocks(copies)
