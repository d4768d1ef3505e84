"""Self-written conversations, read from the shards that `generate` wrote and packed into batches without padding."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from replicas.errors import CheckpointError
from replicas.training.head_module import NUM_TAPS

REPEATED_TOKENS = 8
"""A run of so many tokens that occurred before is a repetition."""
KEPT_REPEATS = 8


@dataclass(frozen=True, slots=True)
class Conversation:
    """Tokens [n] int64 and the target's states [n, (taps + 1) * hidden] fp16; the last token's state is unknown."""

    tokens: Tensor
    states: Tensor
    user_start: int
    """Index of the user's first token."""
    answer_start: int
    """Index of the answer's first token."""

    @property
    def num_drafts(self) -> int:
        """Positions whose first draft token can be checked: the drafter starts once the target's first is known."""
        return max(0, len(self.tokens) - 1 - self.answer_start)

    @property
    def chains(self) -> Tensor:
        """Positions from which a draft starts."""
        return torch.arange(self.num_drafts) + self.answer_start - 1


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Conversations end to end; a row is a position that has both a target state and a next token."""

    next_tokens: Tensor
    """[rows]: the token after each row's position."""
    taps: Tensor
    """[rows, taps * hidden] float32."""
    final: Tensor
    """[rows, hidden] float32: the target's normed last hidden state."""
    positions: Tensor
    """[rows]: within the conversation."""
    bounds: Tensor
    """[conversations + 1]: the rows of conversation i are bounds[i] .. bounds[i + 1] - 1."""
    chains: Tensor
    """Rows, ascending, from which a draft starts."""


class ShardReader:
    """The conversations of a folder; `refresh` picks up shards that appeared since."""

    def __init__(self, folder: Path, prefix_length: int, answer_marker: list[int]) -> None:
        """`prefix_length`: tokens before the user's text; `answer_marker`: those between it and the answer."""
        self.folder, self.prefix_length, self.answer_marker = folder, prefix_length, answer_marker
        self.conversations: list[Conversation] = []
        self.num_tokens = 0
        self.written_by: Counter[str] = Counter()
        """Tokens by the command that wrote them, as the shards name it."""
        self._read: set[Path] = set()
        self.refresh()
        if not self.conversations:
            raise CheckpointError(
                f"{folder} holds no shard-*.safetensors with conversations; run replicas.training.generate"
            )

    def refresh(self) -> None:
        """Append the conversations of new shards, in the order of the shards' names."""
        for path in sorted(set(self.folder.glob("shard-*.safetensors")) - self._read):
            with safe_open(path, framework="pt") as shard:
                lengths: list[int] = shard.get_tensor("lengths").tolist()
                tokens = shard.get_tensor("tokens").long().split(lengths)
                states = shard.get_tensor("states").split(lengths)
                self.written_by[(shard.metadata() or {}).get("written_by", "not recorded")] += sum(lengths)
            for conversation_tokens, conversation_states in zip(tokens, states, strict=True):
                start = find_answer(conversation_tokens.tolist(), self.answer_marker)
                if start is not None:
                    self.conversations.append(
                        Conversation(conversation_tokens, conversation_states, self.prefix_length, start)
                    )
                    self.num_tokens += len(conversation_tokens)
            self._read.add(path)


def find_answer(tokens: list[int], marker: list[int]) -> int | None:
    """Index after the first occurrence of `marker`, the tokens between the user's turn and the answer."""
    width = len(marker)
    return next((i + width for i in range(len(tokens) - width + 1) if tokens[i : i + width] == marker), None)


def split_held_out(conversations: list[Conversation], every: int) -> tuple[list[Conversation], list[Conversation]]:
    """(training, held out): each `every`-th conversation is held out, so that new shards never move one across."""
    kept = [c for index, c in enumerate(conversations) if index % every]
    return kept, conversations[::every]


def pack(conversations: list[Conversation], hidden_size: int, chains: list[Tensor] | None = None) -> PackedBatch:
    """One batch of `conversations`; drafts start at the positions `chains` of each, by default at all that can."""
    rows = [len(c.tokens) - 1 for c in conversations]
    bounds = torch.tensor([0, *rows]).cumsum(0)
    states = torch.cat([c.states[:-1] for c in conversations]).float()
    chains = chains or [c.chains for c in conversations]
    return PackedBatch(
        next_tokens=torch.cat([c.tokens[1:] for c in conversations]),
        taps=states[:, : NUM_TAPS * hidden_size],
        final=states[:, NUM_TAPS * hidden_size :],
        positions=torch.cat([torch.arange(n) for n in rows]),
        bounds=bounds,
        chains=torch.cat([own + start for own, start in zip(chains, bounds.tolist(), strict=False)]),
    )


def worth_learning(conversation: Conversation) -> Tensor:
    """Positions [chains] from which training drafts: those from which serving does, the answer's.

    Left out are most of those whose first draft the text's own repetition gives away. A small model often falls into
    loops; there the draft is copied from the text before, which a head learns at once. One such start in KEPT_REPEATS
    is left so that it stays learnt.
    """
    tokens, seen = conversation.tokens.tolist(), set[tuple[int, ...]]()
    chains = list[int]()
    for start in range(len(tokens) - 2):
        run = tuple(tokens[max(0, start + 3 - REPEATED_TOKENS) : start + 3])
        if start >= conversation.answer_start - 1 and (run not in seen or start % KEPT_REPEATS == 0):
            chains.append(start)
        seen.add(run)
    return torch.tensor(chains, dtype=torch.int64)


def shuffled_batches(
    conversations: list[Conversation], drafts: int, hidden_size: int, order: random.Random
) -> Iterator[PackedBatch]:
    """One pass in random order over what is worth learning; a batch closes once it has `drafts` draft positions."""
    group, chains = list[Conversation](), list[Tensor]()
    count = 0
    for conversation in order.sample(conversations, len(conversations)):
        own = worth_learning(conversation)
        if len(own):
            group.append(conversation)
            chains.append(own)
            count += len(own)
        if count >= drafts:
            yield pack(group, hidden_size, chains)
            group, chains, count = [], [], 0
    if group:
        yield pack(group, hidden_size, chains)
