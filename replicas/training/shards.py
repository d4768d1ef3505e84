"""Self-written conversations, read from the shards that `generate` wrote and packed into batches without padding."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from replicas.errors import CheckpointError
from replicas.training.head_module import NUM_TAPS


@dataclass(frozen=True, slots=True)
class Conversation:
    """Tokens [n] int64 and the target's states [n, (taps + 1) * hidden] fp16; the last token's state is unknown."""

    tokens: Tensor
    states: Tensor
    answer_start: int
    """Index of the answer's first token."""

    @property
    def num_drafts(self) -> int:
        """Positions whose first draft token can be checked: the drafter starts once the target's first is known."""
        return max(0, len(self.tokens) - 1 - self.answer_start)


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

    def __init__(self, folder: Path, answer_marker: list[int]) -> None:
        self.folder, self.answer_marker = folder, answer_marker
        self.conversations: list[Conversation] = []
        self.num_tokens = 0
        self._read: set[Path] = set()
        self.refresh()
        if not self.conversations:
            raise CheckpointError(
                f"{folder} holds no shard-*.safetensors with conversations; run replicas.training.generate"
            )

    def refresh(self) -> None:
        """Append the conversations of new shards, in the order of the shards' names."""
        for path in sorted(set(self.folder.glob("shard-*.safetensors")) - self._read):
            shard = load_file(path)
            lengths = shard["lengths"].tolist()
            tokens, states = shard["tokens"].long().split(lengths), shard["states"].split(lengths)
            for conversation_tokens, conversation_states in zip(tokens, states, strict=True):
                start = find_answer(conversation_tokens.tolist(), self.answer_marker)
                if start is not None:
                    self.conversations.append(Conversation(conversation_tokens, conversation_states, start))
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


def pack(conversations: list[Conversation], hidden_size: int) -> PackedBatch:
    """One batch of `conversations`."""
    rows = [len(c.tokens) - 1 for c in conversations]
    bounds = torch.tensor([0, *rows]).cumsum(0)
    states = torch.cat([c.states[:-1] for c in conversations]).float()
    chains = [
        torch.arange(c.answer_start - 1, c.answer_start - 1 + c.num_drafts) + start
        for c, start in zip(conversations, bounds.tolist(), strict=False)
    ]
    return PackedBatch(
        next_tokens=torch.cat([c.tokens[1:] for c in conversations]),
        taps=states[:, : NUM_TAPS * hidden_size],
        final=states[:, NUM_TAPS * hidden_size :],
        positions=torch.cat([torch.arange(n) for n in rows]),
        bounds=bounds,
        chains=torch.cat(chains),
    )


def shuffled_batches(
    conversations: list[Conversation], drafts: int, hidden_size: int, order: random.Random
) -> Iterator[PackedBatch]:
    """One pass in random order; a batch closes once it has `drafts` draft positions."""
    group: list[Conversation] = []
    count = 0
    for conversation in order.sample(conversations, len(conversations)):
        if conversation.num_drafts:
            group.append(conversation)
            count += conversation.num_drafts
        if count >= drafts:
            yield pack(group, hidden_size)
            group, count = [], 0
    if group:
        yield pack(group, hidden_size)
