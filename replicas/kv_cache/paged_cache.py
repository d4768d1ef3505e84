"""The KV tensor of one model, and the arithmetic from positions to its slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NULL_BLOCK = 0
"""Block that no sequence owns: padding rows write there, so every shape stays fixed."""


@dataclass(frozen=True, slots=True)
class CacheView:
    """Blocks that happen to lie in one run a sequence: attended in place, without a gather.

    Row b of the batch owns slots `first_slot + b * row_stride` onwards.
    """

    first_slot: int
    row_stride: int = 0


class PagedCache:
    """Keys and values of all layers in one tensor [layers * slots, 2 * kv_heads, head_dim].

    One tensor a model, because many same-shaped ones were copied by XLA although donated. Keys and values of
    a slot lie side by side, so that a layer writes and gathers both with one operation.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        slots = num_blocks * block_size
        self.tensor = torch.zeros(num_layers * slots, 2 * num_kv_heads, head_dim, device=device, dtype=dtype)
        self._layers = self.tensor.view(num_layers, slots, 2 * num_kv_heads, head_dim).unbind(0)
        self._workspaces: dict[int, Tensor] = {}

    def write(self, layer: int, keys_values: Tensor, slots: Tensor) -> None:
        """Store `keys_values` [rows, 2 * kv_heads, head_dim] at `slots` [rows]."""
        self._layers[layer].index_put_((slots,), keys_values)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks in all layers; each of `copies` is (from, to)."""
        blocks = self.tensor.view(-1, self.num_blocks, self.block_size * self.tensor[0].numel())
        sources, targets = torch.tensor(copies, device=self.tensor.device).unbind(1)
        blocks[:, targets] = blocks[:, sources]

    def read(self, layer: int, block_tables: Tensor, view: CacheView | None) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, kv_heads, length, head_dim] each, of the blocks in `block_tables` [batch, blocks]."""
        batch, blocks = block_tables.shape
        length = blocks * self.block_size
        if view is not None:
            row = 2 * self.num_kv_heads * self.head_dim
            both = self._layers[layer].as_strided(
                (batch, length, 2 * self.num_kv_heads, self.head_dim),
                (view.row_stride * row, row, self.head_dim, 1),
                self._layers[layer].storage_offset() + view.first_slot * row,
            )
        else:
            # One buffer for all layers and steps of a shape: a fresh one costs page faults, several times the copy.
            flat_blocks = self._layers[layer].view(self.num_blocks, -1)
            workspace = self._workspaces.get(batch * blocks)
            if workspace is None:
                workspace = self._workspaces[batch * blocks] = flat_blocks.new_empty(
                    batch * blocks, flat_blocks.shape[1]
                )
            torch.index_select(flat_blocks, 0, block_tables.flatten(), out=workspace)
            both = workspace.view(batch, length, 2 * self.num_kv_heads, self.head_dim)
        both = both.transpose(1, 2)
        return both[:, : self.num_kv_heads], both[:, self.num_kv_heads :]


def slots_of(positions: Tensor, block_tables: Tensor, block_size: int) -> Tensor:
    """Slots [batch * tokens] of `positions` [batch, tokens]; those below 0 or past the table go to the null block.

    slot = block_table[position // block_size] * block_size + position % block_size (first seed, "KV Cache Sharing").
    """
    last = block_tables.shape[1] * block_size - 1
    inside = positions.clamp(0, last)
    blocks = block_tables.gather(1, (inside // block_size).long())
    slots = blocks * block_size + inside % block_size
    return torch.where((positions < 0) | (positions > last), NULL_BLOCK, slots).flatten()
