"""A drafter whose own drafts are kept, while those of another are verified."""

from collections.abc import Sequence

from torch import Tensor

from replicas.drafters.drafter import Drafter, ProposeInput


class Overruled:
    """Lets `inner` draft and keeps its drafts, but hands out those of `dictated`, so that the target accepts some."""

    def __init__(self, inner: Drafter, dictated: Drafter) -> None:
        self.method = inner.method
        self.tapped_layers = inner.tapped_layers
        self.max_positions = inner.max_positions
        self.states = (*inner.states, *dictated.states)
        self.states = inner.states
        self._inner = inner
        self._dictated = dictated
        self.kept: list[tuple[int, int, tuple[int, ...]]] = []
        """First block, length of the sequence, drafts."""

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        drafts = self._inner.propose(inputs, num_speculative_tokens).tolist()
        lengths = (inputs.positions.gather(1, inputs.last_row[:, None].long())[:, 0] + 2).tolist()
        for table, length, row in zip(inputs.block_tables.tolist(), lengths, drafts, strict=True):
            self.kept.append((table[0], length, tuple(row)))
        return self._dictated.propose(inputs, num_speculative_tokens)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        self._inner.copy_blocks(copies)
        self._dictated.copy_blocks(copies)
