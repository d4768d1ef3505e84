"""Conversations of shards as right-padded batches, for models that transformers runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from replicas.errors import CheckpointError
from replicas.training.shards import find_answer


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Conversations of different lengths; what lies behind their ends is nowhere labelled."""

    tokens: Tensor
    """[conversations, length] int64."""
    states: Tensor
    """[conversations, length, hidden] float32: the target's normed last states; zero where it ran nothing."""
    labelled: Tensor
    """[conversations, length] bool: positions after which the target's answer has a token."""


def padded_batches(shards: list[Path], marker: list[int], hidden: int, count: int) -> Iterator[PaddedBatch]:
    """The conversations of `shards`, `count` at a time; `marker` stands before each answer."""
    for path in shards:
        shard = load_file(path)
        lengths = shard["lengths"].tolist()
        pairs = zip(shard["tokens"].long().split(lengths), shard["states"][:, -hidden:].split(lengths), strict=True)
        usable = [(*pair, start) for pair in pairs if (start := find_answer(pair[0].tolist(), marker)) is not None]
        for first in range(0, len(usable) - count + 1, count):
            group = usable[first : first + count]
            tokens = pad_sequence([tokens for tokens, _, _ in group], batch_first=True)
            states = pad_sequence([states.float() for _, states, _ in group], batch_first=True)
            labelled = torch.zeros(tokens.shape, dtype=torch.bool)
            for row, (ids, _, start) in enumerate(group):
                # The last token was never run by the target.
                labelled[row, start - 1 : len(ids) - 1] = True
            yield PaddedBatch(tokens, states, labelled)


def held_out_and_training(folder: Path, held_out: int) -> tuple[list[Path], list[Path]]:
    """The first `held_out` shards of `folder`, and the others. Raises CheckpointError if there are no others."""
    shards = sorted(folder.glob("shard-*.safetensors"))
    if len(shards) <= held_out:
        raise CheckpointError(
            f"{folder} holds {len(shards)} files shard-*.safetensors, of which {held_out} are held out; at least one "
            f"more is needed (replicas.training.generate writes them)"
        )
    return shards[:held_out], shards[held_out:]
