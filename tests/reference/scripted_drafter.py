"""A drafter whose drafts a test dictates, to steer how many the target accepts."""

import random
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from replicas.drafters.drafter import ProposeInput

Rule = Callable[[tuple[int, ...], int], Sequence[int]]
"""(tokens so far, less the first one; K) -> K drafts. The first token of a prompt never reaches a drafter."""


class ScriptedDrafter:
    """Remembers each sequence's tokens by its first block, from ProposeInput alone, and asks `rule` for drafts."""

    method = "scripted"

    def __init__(self, rule: Rule, tapped_layers: tuple[int, ...] = (0, 2, 3)) -> None:
        self.tapped_layers = tapped_layers
        self._rule = rule
        self._tokens: dict[int, dict[int, int]] = {}

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        """See Drafter.propose; padding rows get zeros."""
        tables, rows = inputs.block_tables.tolist(), inputs.last_row.tolist()
        drafts: list[list[int]] = []
        for table, positions, next_ids, last in zip(
            tables, inputs.positions.tolist(), inputs.next_token_ids.tolist(), rows, strict=True
        ):
            known = self._tokens.setdefault(table[0], {})
            if 0 in positions:
                known.clear()
            known.update({p + 1: token for p, token in zip(positions, next_ids, strict=True) if p >= 0})
            if positions[last] < 0 or num_speculative_tokens == 0:
                drafts.append([0] * num_speculative_tokens)
            else:
                tokens = tuple(known[position] for position in range(1, positions[last] + 2))
                drafts.append(list(self._rule(tokens, num_speculative_tokens)))
        return torch.tensor(drafts, dtype=torch.int32).view(len(drafts), num_speculative_tokens)


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
