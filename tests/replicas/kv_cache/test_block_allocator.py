import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.errors import EyrieError
from replicas.kv_cache.block_allocator import BlockAllocator


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    num_blocks=st.integers(2, 40),
    actions=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=60),
)
def test_no_block_is_owned_twice_or_leaked(num_blocks: int, actions: list[tuple[int, int]]) -> None:
    allocator = BlockAllocator(num_blocks)
    owners: dict[int, list[int]] = {}
    for owner, count in actions:
        owned = [block for blocks in owners.values() for block in blocks]
        if owner in owners and count % 3 == 0:
            allocator.free(owners.pop(owner))
        else:
            mine = owners.get(owner, [])
            blocks = allocator.allocate(count, after=mine[-1] if mine else None)
            if count > num_blocks - 1 - len(owned):
                assert blocks is None
            else:
                assert blocks is not None
                assert len(blocks) == count == len(set(blocks))
                assert not set(blocks) & set(owned)
                assert all(0 < block < num_blocks for block in blocks)
                owners.setdefault(owner, []).extend(blocks)
        assert allocator.num_free == num_blocks - 1 - sum(map(len, owners.values()))
    for blocks in owners.values():
        allocator.free(blocks)
    everything = allocator.allocate(num_blocks - 1)
    assert everything is not None
    assert sorted(everything) == list(range(1, num_blocks))


def test_allocation_takes_all_or_nothing() -> None:
    allocator = BlockAllocator(5)
    assert allocator.allocate(5) is None
    assert allocator.num_free == 4
    assert allocator.allocate(4) is not None
    assert allocator.allocate(1) is None
    assert allocator.allocate(0) == []


@pytest.mark.parametrize("block", [0, 3, 5, -1])
def test_freeing_what_is_not_owned_is_refused(block: int) -> None:
    allocator = BlockAllocator(5)
    blocks = allocator.allocate(3)
    assert blocks == [1, 2, 3]
    allocator.free([3])
    with pytest.raises(EyrieError, match=f"block {block} is freed but not owned"):
        allocator.free([block])
    assert allocator.num_free == 2


def test_freeing_twice_in_one_call_is_refused() -> None:
    allocator = BlockAllocator(5)
    blocks = allocator.allocate(1)
    assert blocks is not None
    with pytest.raises(EyrieError, match="freed but not owned"):
        allocator.free(blocks * 2)
    assert allocator.num_free == 4


def test_a_sequence_grows_into_its_neighbours() -> None:
    allocator = BlockAllocator(33)
    first = allocator.allocate(4)
    assert first == [1, 2, 3, 4]
    second = allocator.allocate(4)
    assert second is not None
    assert second == list(range(second[0], second[0] + 4))
    assert second[0] > 10, "the second sequence leaves the first one room to grow"
    for _ in range(4):
        assert allocator.allocate(1, after=first[-1]) == [first[-1] + 1]
        assert allocator.allocate(1, after=second[-1]) == [second[-1] + 1]
        first, second = [*first, first[-1] + 1], [*second, second[-1] + 1]


def test_without_a_free_neighbour_the_longest_run_is_used() -> None:
    allocator = BlockAllocator(12)
    assert allocator.allocate(11) == list(range(1, 12))
    allocator.free([2, 6, 7, 8, 10])
    blocks = allocator.allocate(2, after=3)
    assert blocks is not None
    assert set(blocks) <= {6, 7, 8}
    assert allocator.allocate(1, after=1) == [2]
