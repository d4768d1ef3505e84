"""The pieces that decoders share: norm, rotary embedding, paged attention, MLP. Pure functions of tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices.device_backend import DeviceBackend
from replicas.errors import CheckpointError
from replicas.kv_cache.paged_cache import CacheView, PagedCache
from replicas.models.decoder_layer import DecoderLayer
from replicas.models.model_config import ModelConfig
from replicas.models.ordered_attention import OrderedAttention


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Everything attention needs besides its activations; computed once a step, shared by all layers of a model."""

    rows: Tensor
    """[batch * tokens, 2 * kv_heads]: where the keys and values go (PagedCache.rows_of)."""
    cosines: Tensor
    """[batch * tokens, heads + 2 * kv_heads, head_dim]; 1 over the value heads, which must not rotate."""
    signed_sines: Tensor
    """Same shape; the first half of each head negated, 0 over the value heads."""
    mask: Tensor
    """[batch, 1, group * tokens, length], 0 where a row may look and -inf where not."""
    blocks: Tensor
    """[batch, 2 * kv_heads, blocks]: where they are read (PagedCache.blocks_of)."""
    view: CacheView | None
    ordered: OrderedAttention | None
    """In the deterministic mode: attends in place of the three above."""


class RotaryEmbedding:
    """Cosines and sines of every position up to `max_positions`."""

    def __init__(self, config: ModelConfig, max_positions: int, backend: DeviceBackend) -> None:
        if config.max_exact_positions is not None and max_positions > config.max_exact_positions:
            raise CheckpointError(
                f"max_model_len is {max_positions}, but the RoPE scaling or sliding window in config.json of a "
                f"{config.architecture} is only supported up to {config.max_exact_positions} tokens"
            )
        frequencies = torch.tensor(config.rope_inverse_frequencies, dtype=torch.float32)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
        cosines, sines = angles.cos() * config.rope_attention_scaling, angles.sin() * config.rope_attention_scaling
        self._heads = config.num_heads + config.num_kv_heads
        self._group = config.query_group
        self._is_ordered = backend.deterministic
        self._cosines = backend.place(self._over_heads(torch.cat([cosines, cosines], -1), config.num_kv_heads, 1.0))
        self._signed_sines = backend.place(self._over_heads(torch.cat([-sines, sines], -1), config.num_kv_heads, 0.0))

    def _over_heads(self, rotating: Tensor, num_kv_heads: int, still: float) -> Tensor:
        positions, head_dim = rotating.shape
        values = rotating.new_full((positions, num_kv_heads, head_dim), still)
        return torch.cat([rotating[:, None].expand(positions, self._heads, head_dim), values], 1)

    def attention_inputs(
        self, positions: Tensor, block_tables: Tensor, cache: PagedCache, view: CacheView | None = None
    ) -> AttentionInputs:
        """For `positions` [batch, tokens] (below 0: padding) over the blocks of `block_tables` [batch, blocks]."""
        batch, tokens = positions.shape
        inside = positions.clamp(0, self._cosines.shape[0] - 1)
        rows = inside.flatten()
        keys = torch.arange(block_tables.shape[1] * cache.block_size, device=positions.device, dtype=positions.dtype)
        hidden = keys > inside[:, None, None, :, None]
        mask = torch.where(hidden, -torch.inf, 0.0).to(self._cosines.dtype)
        mask = mask.expand(batch, 1, self._group, tokens, -1).reshape(batch, 1, self._group * tokens, -1)
        cosines, sines = self._cosines.index_select(0, rows), self._signed_sines.index_select(0, rows)
        places = cache.rows_of(positions, block_tables), cache.blocks_of(block_tables)
        num_heads = self._heads - cache.num_kv_heads
        ordered = OrderedAttention.of(hidden[:, 0, 0], block_tables, cache, num_heads) if self._is_ordered else None
        return AttentionInputs(places[0], cosines, sines, mask, places[1], view, ordered)


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm over the last dimension."""
    return functional.rms_norm(hidden, (hidden.shape[-1],), weight, epsilon)


def rotate(heads: Tensor, attention: AttentionInputs) -> Tensor:
    """Rotary embedding of `heads` [rows, heads + 2 * kv_heads, head_dim]: queries and keys turn, values stay."""
    half = heads.shape[-1] // 2
    turned = torch.cat([heads[..., half:], heads[..., :half]], -1)
    return torch.addcmul(heads * attention.cosines, turned, attention.signed_sines)


def paged_attention(heads: Tensor, layer: int, cache: PagedCache, attention: AttentionInputs) -> Tensor:
    """Write the rows' keys and values, attend over the blocks.

    [rows, heads + 2 * kv_heads, head_dim] -> [rows, heads * head_dim].

    The query heads of one KV head are folded into its rows, so that keys and values are never repeated.
    """
    kv_heads, head_dim = cache.num_kv_heads, cache.head_dim
    rows = heads.shape[0]
    batch = attention.blocks.shape[0]
    tokens = rows // batch
    num_heads = heads.shape[1] - 2 * kv_heads
    group = num_heads // kv_heads
    cache.write(layer, heads[:, num_heads:], attention.rows)
    if attention.ordered is not None:
        return attention.ordered.attend(heads[:, :num_heads], cache.rows(layer))
    keys, values = cache.read(layer, attention.blocks, attention.view)
    queries = heads[:, :num_heads].view(batch, tokens, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    queries = queries.reshape(batch, kv_heads, group * tokens, head_dim)
    out = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=attention.mask)
    out = out.view(batch, kv_heads, group, tokens, head_dim).permute(0, 3, 1, 2, 4)
    return out.reshape(rows, num_heads * head_dim)


def gated_mlp(hidden: Tensor, layer: DecoderLayer) -> Tensor:
    """SwiGLU: down(silu(gate) * up), gate and up from one product."""
    gate, up = layer.gate_up(hidden).chunk(2, -1)
    return layer.down(layer.silu(gate) * up)
