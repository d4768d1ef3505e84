"""The KV tensor of one model, and the arithmetic from positions to its slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.devices.rows import put_rows

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
    """Keys and values of all layers in one tensor [layers * 2 * kv_heads * slots, head_dim], keys' heads first.

    One tensor a model, because many same-shaped ones were copied by XLA although donated; flat, because XLA copied
    what was updated through a view, too. Head by head, so that attention streams each head's keys
    (docs/decisions/0003).
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
        is_static: bool | None = None,
    ) -> None:
        """`is_static`: programs are graphs, which keep no views and no buffers; by default on all but the CPU."""
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self._slots = num_blocks * block_size
        self._layer_rows = 2 * num_kv_heads * self._slots
        self._is_eager = not is_static if is_static is not None else device is None or device.type == "cpu"
        # Inference tensors cannot be updated in place in XLA's graphs.
        with torch.inference_mode(self._is_eager and torch.is_inference_mode_enabled()):
            self.tensor = torch.zeros(num_layers * self._layer_rows, head_dim, device=device, dtype=dtype)
        self._layers = self.tensor.view(num_layers, self._layer_rows, head_dim).unbind(0) if self._is_eager else ()
        self._heads = self._all_heads(device) if self._is_eager else None
        self._workspace = self.tensor.new_empty(0, block_size * head_dim)
        """[blocks of one head, elements]: what was gathered last."""

    @property
    def workspace_blocks(self) -> int:
        """Blocks of the largest gather so far, for which there is a buffer."""
        return self._workspace.shape[0] // (2 * self.num_kv_heads)

    def rows_of(self, positions: Tensor, block_tables: Tensor) -> Tensor:
        """Where a layer keeps `positions` [batch, tokens]: rows [batch * tokens, 2 * kv_heads], for `write`."""
        return (
            slots_of(positions, block_tables, self.block_size)[:, None] + self._heads_of(positions.device) * self._slots
        )

    def blocks_of(self, block_tables: Tensor) -> Tensor:
        """Where a layer keeps `block_tables` [batch, blocks]: blocks [batch, 2 * kv_heads, blocks], for `read`."""
        return block_tables[:, None] + self._heads_of(block_tables.device)[:, None] * self.num_blocks

    def _heads_of(self, device: torch.device) -> Tensor:
        # A graph makes its constants itself: a tensor from outside would be one input more.
        return self._all_heads(device) if self._heads is None else self._heads

    def _all_heads(self, device: torch.device | None) -> Tensor:
        return torch.arange(2 * self.num_kv_heads, device=device, dtype=torch.int32)

    @property
    def num_rows(self) -> int:
        """Rows of `rows`: those that `rows_of` may name."""
        return self._layer_rows

    def rows(self, layer: int) -> Tensor:
        """All that a layer keeps: [2 * kv_heads * slots, head_dim]."""
        return self._layers[layer]

    def write(self, layer: int, keys_values: Tensor, rows: Tensor) -> None:
        """Store `keys_values` [tokens, 2 * kv_heads, head_dim] at `rows` [tokens, 2 * kv_heads]."""
        if self._is_eager:
            self._layers[layer].index_put_((rows,), keys_values)
        else:
            put_rows(self.tensor, (rows + layer * self._layer_rows).flatten(), keys_values.flatten(0, 1))

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks in all layers; each of `copies` is (from, to)."""
        blocks = self.tensor.view(-1, self.num_blocks, self.block_size * self.head_dim)
        sources, targets = torch.tensor(copies, device=self.tensor.device).unbind(1)
        blocks[:, targets] = blocks[:, sources]

    def read(self, layer: int, blocks: Tensor, view: CacheView | None) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, kv_heads, length, head_dim] each, of `blocks` [batch, 2 * kv_heads, blocks]."""
        shape = (blocks.shape[0], 2 * self.num_kv_heads, blocks.shape[2] * self.block_size, self.head_dim)
        if not self._is_eager:
            of_all = self.tensor.view(-1, self.block_size * self.head_dim)
            first = layer * self._layer_rows // self.block_size
            both = of_all.index_select(0, (blocks + first).flatten()).view(shape)
        elif view is not None:
            width, base = self.head_dim, self._layers[layer].storage_offset()
            strides = (view.row_stride * width, self._slots * width, width, 1)
            both = self._layers[layer].as_strided(shape, strides, base + view.first_slot * width)
        else:
            # One buffer for all layers and steps: a fresh one costs page faults, several times the copy.
            of_layer = self._layers[layer].view(-1, self.block_size * self.head_dim)
            if blocks.numel() > len(self._workspace):
                self._workspace = of_layer.new_empty(blocks.numel(), of_layer.shape[1])
            gathered = self._workspace[: blocks.numel()]
            torch.index_select(of_layer, 0, blocks.flatten(), out=gathered)
            both = gathered.view(shape)
        return both[:, : self.num_kv_heads], both[:, self.num_kv_heads :]


def slots_of(positions: Tensor, block_tables: Tensor, block_size: int) -> Tensor:
    """Slots [batch * tokens] of `positions` [batch, tokens]; those below 0 or past the table go to the null block.

    slot = block_table[position // block_size] * block_size + position % block_size (first seed, "KV Cache Sharing").
    """
    last = block_tables.shape[1] * block_size - 1
    inside = positions.clamp(0, last)
    slots = block_tables.gather(1, inside // block_size) * block_size + inside % block_size
    return torch.where(positions == inside, slots, NULL_BLOCK).flatten()
