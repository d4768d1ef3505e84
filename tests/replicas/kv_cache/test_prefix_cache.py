from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.kv_cache.block_allocator import BlockAllocator
from replicas.kv_cache.prefix_cache import PrefixCache


def identities(token_ids: list[int], block_size: int = 4) -> list[bytes]:
    found: list[bytes] = []
    PrefixCache(BlockAllocator(2), block_size).extend(found, token_ids)
    return found


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    first=st.lists(st.integers(0, 1), max_size=40),
    second=st.lists(st.integers(0, 1), max_size=40),
    block_size=st.integers(1, 5),
)
def test_blocks_are_the_same_if_and_only_if_all_tokens_are_up_to_the_one_that_follows(
    first: list[int], second: list[int], block_size: int
) -> None:
    ours, theirs = identities(first, block_size), identities(second, block_size)
    assert len(ours) == max(0, (len(first) - 1) // block_size)
    for index, identity in enumerate(ours):
        end = (index + 1) * block_size + 1
        assert (identity in theirs) == (first[:end] == second[:end] and len(second) >= end)
    assert len(set(ours)) == len(ours)


def test_extending_goes_on_where_it_ended() -> None:
    cache = PrefixCache(BlockAllocator(2), 4)
    tokens = list(range(30))
    found: list[bytes] = []
    for length in (3, 4, 5, 5, 12, 13, 30):
        cache.extend(found, tokens[:length])
        assert found == identities(tokens[:length])


def test_token_ids_of_any_size_differ() -> None:
    assert len({identities([token] * 5)[0] for token in (0, 1, 256, 2**31)}) == 4


def test_a_text_is_found_up_to_the_first_block_that_is_missing() -> None:
    allocator = BlockAllocator(10)
    cache = PrefixCache(allocator, 4)
    names = identities(list(range(17)))
    blocks = allocator.allocate(4)
    assert blocks is not None
    cache.publish(blocks[:2], names[:2])
    cache.publish(blocks[3:], names[3:])
    assert cache.find(names) == blocks[:2]
    cache.publish(blocks[2:3], names[2:3])
    assert cache.find(names) == blocks
    assert cache.find(identities([99, *range(1, 17)])) == []
