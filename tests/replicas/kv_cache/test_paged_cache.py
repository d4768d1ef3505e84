import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.kv_cache.paged_cache import CacheView, PagedCache, slots_of


def naive_slots(positions: list[list[int]], tables: list[list[int]], block_size: int) -> list[int]:
    slots: list[int] = []
    for row, table in zip(positions, tables, strict=True):
        for position in row:
            if position < 0 or position >= len(table) * block_size:
                slots.append(0)
            else:
                slots.append(table[position // block_size] * block_size + position % block_size)
    return slots


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    data=st.data(),
    block_size=st.integers(1, 9),
    batch=st.integers(1, 4),
    blocks=st.integers(1, 5),
    tokens=st.integers(1, 6),
)
def test_slots_follow_the_block_table(
    data: st.DataObject, block_size: int, batch: int, blocks: int, tokens: int
) -> None:
    position = st.integers(-2, blocks * block_size + 3)
    positions = data.draw(
        st.lists(st.lists(position, min_size=tokens, max_size=tokens), min_size=batch, max_size=batch)
    )
    row = st.lists(st.integers(0, 30), min_size=blocks, max_size=blocks)
    tables = data.draw(st.lists(row, min_size=batch, max_size=batch))
    slots = slots_of(torch.tensor(positions, dtype=torch.int32), torch.tensor(tables, dtype=torch.int32), block_size)
    assert slots.tolist() == naive_slots(positions, tables, block_size)


def filled_cache(layers: int = 2, num_blocks: int = 10, block_size: int = 4) -> PagedCache:
    cache = PagedCache(layers, num_blocks, block_size, num_kv_heads=2, head_dim=3)
    cache.tensor.copy_(torch.arange(cache.tensor.numel()).view_as(cache.tensor))
    return cache


def test_reading_gathers_the_blocks_of_each_sequence() -> None:
    cache = filled_cache()
    tables = torch.tensor([[3, 1], [9, 0]], dtype=torch.int32)
    keys, values = cache.read(1, cache.blocks_of(tables), None)
    assert keys.shape == values.shape == (2, 2, 8, 3)
    layer = cache.tensor.view(2, 4, 10, 4, 3)[1]
    for row, table in enumerate(tables.tolist()):
        for position in range(8):
            slot = layer[:, table[position // 4], position % 4]
            assert torch.equal(keys[row, :, position], slot[:2])
            assert torch.equal(values[row, :, position], slot[2:])


def test_blocks_are_copied_in_all_layers_and_nothing_else_changes() -> None:
    cache = filled_cache()
    before = cache.tensor.clone().view(2, 4, 10, 4, 3)
    cache.copy_blocks(((3, 7), (1, 8)))
    after = cache.tensor.view(2, 4, 10, 4, 3)
    assert torch.equal(after[:, :, [7, 8]], before[:, :, [3, 1]])
    others = [0, 1, 2, 3, 4, 5, 6, 9]
    assert torch.equal(after[:, :, others], before[:, :, others])


def test_a_view_reads_the_same_as_a_gather() -> None:
    cache = filled_cache()
    for layer in range(2):
        for first in range(1, 8):
            tables = torch.arange(first, first + 3, dtype=torch.int32)[None]
            gathered = [part.clone() for part in cache.read(layer, cache.blocks_of(tables), None)]
            viewed = cache.read(layer, cache.blocks_of(tables), CacheView(first * 4))
            assert all(torch.equal(*pair) for pair in zip(gathered, viewed, strict=True))


def test_a_view_of_a_batch_steps_from_row_to_row() -> None:
    cache = filled_cache()
    tables = torch.tensor([[2, 3], [5, 6]], dtype=torch.int32)
    gathered = [part.clone() for part in cache.read(1, cache.blocks_of(tables), None)]
    viewed = cache.read(1, cache.blocks_of(tables), CacheView(8, row_stride=12))
    assert all(torch.equal(*pair) for pair in zip(gathered, viewed, strict=True))


def test_a_view_is_no_copy() -> None:
    cache = filled_cache()
    tables = torch.tensor([[2, 3]], dtype=torch.int32)
    keys, values = cache.read(0, cache.blocks_of(tables), CacheView(8))
    cache.write(0, torch.full((1, 4, 3), -1.0), cache.rows_of(torch.tensor([[1]]), tables))
    assert (keys[0, :, 1] == -1).all()
    assert (values[0, :, 1] == -1).all()


def test_writing_touches_its_layer_and_slots_only() -> None:
    cache = filled_cache()
    heads = cache.tensor.view(2, 4, -1, 3)
    before = heads.clone()
    rows = -torch.arange(1.0, 25.0).view(2, 4, 3)
    positions, tables = torch.tensor([[5], [1]], dtype=torch.int32), torch.tensor([[2, 4], [1, 3]], dtype=torch.int32)
    cache.write(1, rows, cache.rows_of(positions, tables))
    assert torch.equal(heads[1, :, 17], rows[0])
    assert torch.equal(heads[1, :, 5], rows[1])
    changed = (heads != before).transpose(1, 2).flatten(2).any(-1)
    assert changed.nonzero().tolist() == [[1, 5], [1, 17]]
