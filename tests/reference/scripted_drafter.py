"""A drafter whose drafts a test dictates, to steer how many the target accepts."""

import random
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from replicas.drafters.drafter import ProposeInput

Rule = Callable[[tuple[int, ...], int], Sequence[int]]
"""(tokens so far, less the first one; K) -> K drafts. The first token of a prompt never reaches a drafter."""


class ScriptedDrafter:
    """Keeps each token in the KV slot of the position before it, as a head does, and asks `rule` for drafts."""

    method = "scripted"
    max_positions: int | None = None
    states = ()

    def __init__(self, rule: Rule, tapped_layers: tuple[int, ...] = (0, 2, 3), block_size: int = 4) -> None:
        self.tapped_layers = tapped_layers
        self._rule = rule
        self._block_size = block_size
        self._kv: dict[tuple[int, int], int] = {}
        """Next token by block and slot in it."""

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        """See Drafter.propose; padding rows get zeros."""
        tables, rows = inputs.block_tables.tolist(), inputs.last_row.tolist()
        drafts: list[list[int]] = []
        for table, positions, next_ids, last in zip(
            tables, inputs.positions.tolist(), inputs.next_token_ids.tolist(), rows, strict=True
        ):
            for position, token in zip(positions, next_ids, strict=True):
                if position >= 0:
                    self._kv[table[position // self._block_size], position % self._block_size] = token
            if positions[last] < 0 or num_speculative_tokens == 0:
                drafts.append([0] * num_speculative_tokens)
            else:
                slots = (divmod(position, self._block_size) for position in range(positions[last] + 1))
                tokens = tuple(self._kv[table[block], slot] for block, slot in slots)
                drafts.append(list(self._rule(tokens, num_speculative_tokens)))
        return torch.tensor(drafts, dtype=torch.int32).view(len(drafts), num_speculative_tokens)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """See Drafter.copy_blocks."""
        for source, target in copies:
            self._kv |= {(target, slot): token for (block, slot), token in self._kv.items() if block == source}


def continuation(sequences: Iterable[Sequence[int]], vocab: int, hit_rate: float = 1.0, seed: int = 0) -> Rule:
    """Drafts what follows in that one of `sequences` which begins like the tokens so far, each right with `hit_rate`.

    A wrong draft is the right token plus 1 (modulo `vocab`). Beyond a known end it drafts 0.
    """
    known = [tuple(sequence[1:]) for sequence in sequences]
    chance = random.Random(seed)

    def rule(tokens: tuple[int, ...], count: int) -> list[int]:
        match = next((whole for whole in known if whole[: len(tokens)] == tokens), None)
        right = () if match is None else match[len(tokens) : len(tokens) + count]
        drafts = [token if chance.random() < hit_rate else (token + 1) % vocab for token in right]
        return drafts + [0] * (count - len(drafts))

    return rule
