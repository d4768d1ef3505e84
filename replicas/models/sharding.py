"""Which part of every dimension a rank keeps: columns, rows, vocabulary and heads (Megatron's split)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from replicas.devices.collectives import Collectives
from replicas.devices.weight_sizes import DecoderSizes, ceil_div
from replicas.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class RankSlice:
    """Elements `start` to `stop` of a dimension that has `stored` in the checkpoint, then zeros up to `padded`.

    `padded` is the same on all ranks, so that their programs are; a rank beyond the end has nothing but zeros.
    """

    stored: int
    start: int
    stop: int
    padded: int

    @property
    def is_whole(self) -> bool:
        """True if no other rank has any of it."""
        return (self.start, self.stop) == (0, self.stored)

    def pad(self, tensor: Tensor, dim: int) -> Tensor:
        """`tensor`, whose dimension `dim` holds `start` to `stop`, with the zeros."""
        missing = self.padded - tensor.shape[dim]
        if not missing:
            return tensor
        shape = [*tensor.shape[:dim], missing, *tensor.shape[dim + 1 :]]
        return torch.cat([tensor, tensor.new_zeros(shape)], dim)


@dataclass(frozen=True, slots=True)
class RankShare:
    """The parts of rank `rank` of `size`."""

    size: int
    rank: int

    @staticmethod
    def of(collectives: Collectives) -> "RankShare":
        """The share of this rank."""
        return RankShare(collectives.size, collectives.rank)

    def even(self, stored: int, multiple: int = 1) -> RankSlice:
        """An equal part of `stored` elements, padded to a multiple of `multiple` together."""
        return self._part(stored, ceil_div(ceil_div(stored, multiple) * multiple, self.size), self.rank)

    def config(self, config: ModelConfig) -> ModelConfig:
        """`config` with this rank's heads and MLP; the same for all ranks. Vocabulary and hidden size stay whole."""
        sizes = decoder_sizes(config).of_rank(self.size)
        return replace(
            config,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            intermediate_size=sizes.intermediate_size,
        )

    def keys(self, config: ModelConfig) -> RankSlice:
        """Rows of a key or value projection: those of whole KV heads."""
        mine = self.config(config).num_kv_heads
        copies = self._copies(config)
        return self._part(config.num_kv_heads * config.head_dim, mine * config.head_dim, self.rank // copies)

    def queries(self, config: ModelConfig) -> RankSlice:
        """Rows of the query projection, columns of the output: the query heads of this rank's KV heads."""
        mine, copies = self.config(config).num_heads, self._copies(config)
        if copies == 1:
            return self._part(config.num_heads * config.head_dim, mine * config.head_dim, self.rank)
        # Ranks with the same KV head divide its query heads; where that leaves a remainder the last has fewer.
        group = config.query_group
        first = self.rank // copies * group
        start, stop = (first + min((self.rank % copies + end) * mine, group) for end in (0, 1))
        start, stop = (min(head, config.num_heads) * config.head_dim for head in (start, stop))
        return RankSlice(config.num_heads * config.head_dim, start, stop, mine * config.head_dim)

    def _copies(self, config: ModelConfig) -> int:
        """Ranks that keep the same KV head."""
        return max(1, self.size // config.num_kv_heads)

    def _part(self, stored: int, each: int, index: int) -> RankSlice:
        return RankSlice(stored, min(index * each, stored), min((index + 1) * each, stored), each)


def decoder_sizes(shape: ModelConfig) -> DecoderSizes:
    """The sizes of `shape` that a rank's share, and memory, depend on."""
    return DecoderSizes(
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.num_layers,
    )
