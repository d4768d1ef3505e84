"""Ordered attention: right, and the same bits for a row whatever else is there."""

import itertools

import pytest
import torch
from torch import Tensor

from replicas.kv_cache.paged_cache import PagedCache
from replicas.models import ordered_attention
from replicas.models.ordered_attention import OrderedAttention

BLOCK = 8
NUM_BLOCKS = 64
SHAPES = [(4, 2, 16), (9, 3, 64), (3, 1, 37), (2, 2, 20)]
"""Heads, KV heads, head_dim."""


def filled_cache(kv_heads: int, head_dim: int, seed: int = 0) -> PagedCache:
    cache = PagedCache(2, NUM_BLOCKS, BLOCK, kv_heads, head_dim)
    cache.tensor.copy_(torch.randn(cache.tensor.shape, generator=torch.Generator().manual_seed(seed)))
    return cache


def attend(queries: Tensor, positions: Tensor, tables: Tensor, cache: PagedCache) -> Tensor:
    """`queries` [batch, tokens, heads, head_dim] at `positions` [batch, tokens] -> [batch, tokens, heads, head_dim]."""
    hidden = torch.arange(tables.shape[1] * BLOCK) > positions[:, :, None]
    attention = OrderedAttention.of(hidden, tables, cache, queries.shape[2])
    return attention.attend(queries.flatten(0, 1), cache.rows(1)).view(queries.shape)


def tables_of(batch: int, blocks: int, generator: torch.Generator) -> Tensor:
    return torch.stack([torch.randperm(NUM_BLOCKS, generator=generator)[:blocks] for _ in range(batch)]).int()


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_it_is_softmax_attention(heads: int, kv_heads: int, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(1)
    cache = filled_cache(kv_heads, head_dim)
    tables = tables_of(3, 5, generator)
    positions = torch.tensor([[0, 1], [17, 18], [38, 39]])
    queries = torch.randn(3, 2, heads, head_dim, generator=generator)
    out = attend(queries, positions, tables, cache)
    layer = cache.rows(1).double().view(2, kv_heads, NUM_BLOCKS, BLOCK, head_dim)
    for row, token, head in itertools.product(range(3), range(2), range(heads)):
        keys, values = layer[:, head // (heads // kv_heads), tables[row].long()].flatten(1, 2)
        keys, values = (part[: positions[row, token] + 1] for part in (keys, values))
        weights = torch.softmax(keys @ queries[row, token, head].double() * head_dim**-0.5, 0)
        torch.testing.assert_close(out[row, token, head].double(), weights @ values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_a_row_s_bits_are_its_own(heads: int, kv_heads: int, head_dim: int, threads: int) -> None:
    generator = torch.Generator().manual_seed(2)
    cache = filled_cache(kv_heads, head_dim)
    query, table = torch.randn(heads, head_dim, generator=generator), tables_of(1, 40, generator)[0]
    for position in (0, 6, 100, 250):
        torch.set_num_threads(1)
        shortest = position // BLOCK + 1
        alone = attend(query[None, None], torch.tensor([[position]]), table[None, :shortest], cache)
        torch.set_num_threads(threads)
        for batch, tokens, blocks in itertools.product((1, 2, 5), (1, 2, 7), (shortest, shortest + 1, 40)):
            queries = torch.randn(batch, tokens, heads, head_dim, generator=generator)
            positions = torch.randint(blocks * BLOCK, (batch, tokens), generator=generator)
            tables = tables_of(batch, blocks, generator)
            queries[-1, tokens // 2], positions[-1, tokens // 2] = query, position
            tables[-1, :shortest] = table[:shortest]
            out = attend(queries, positions, tables, cache)
            assert torch.equal(out[-1, tokens // 2], alone[0, 0]), (position, batch, tokens, blocks)
    torch.set_num_threads(1)


def test_where_the_blocks_lie_is_of_no_account() -> None:
    generator = torch.Generator().manual_seed(3)
    cache = filled_cache(2, 20)
    query, position = torch.randn(1, 1, 4, 20, generator=generator), torch.tensor([[29]])
    first = attend(query, position, torch.tensor([[1, 2, 3, 4]], dtype=torch.int32), cache)
    for blocks in ([9, 40, 7, 22], [63, 62, 61, 60]):
        cache.copy_blocks(list(zip((1, 2, 3, 4), blocks, strict=True)))
        assert torch.equal(attend(query, position, torch.tensor([blocks], dtype=torch.int32), cache), first)


def test_pieces_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(4)
    cache = filled_cache(2, 16)
    queries, tables = torch.randn(2, 9, 4, 16, generator=generator), tables_of(2, 4, generator)
    positions = torch.randint(32, (2, 9), generator=generator)
    whole = attend(queries, positions, tables, cache)
    monkeypatch.setattr(ordered_attention, "PIECE", 4 * 4 * 32)
    hidden = torch.arange(32) > positions[:, :, None]
    pieces = OrderedAttention.of(hidden, tables, cache, 4).pieces
    assert [len(piece.starts) for piece in pieces] == [16, 16, 16, 16, 8]
    assert torch.equal(attend(queries, positions, tables, cache), whole)
