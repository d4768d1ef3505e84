import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.errors import EyrieError
from replicas.kv_cache.block_allocator import BlockAllocator


class Checked:
    """An allocator beside a model of it that only counts owners."""

    def __init__(self, num_blocks: int) -> None:
        self.allocator = BlockAllocator(num_blocks)
        self.sequences: dict[int, list[int]] = {}
        self.names: dict[bytes, int] = {}
        """What was published last under an identity; the allocator may have forgotten it since."""

    def grow(self, key: int, count: int) -> None:
        owned = {block for blocks in self.sequences.values() for block in blocks}
        mine = self.sequences.get(key, [])
        blocks = self.allocator.allocate(count, after=mine[-1] if mine else None)
        if count > self.allocator.num_blocks - 1 - len(owned):
            assert blocks is None
            return
        assert blocks is not None
        assert len(blocks) == count == len(set(blocks))
        assert not set(blocks) & owned
        assert all(0 < block < self.allocator.num_blocks for block in blocks)
        for identity, block in list(self.names.items()):
            if block in blocks:
                assert self.allocator.find(identity) is None, "a block that was reused is not what it was"
                del self.names[identity]
        self.sequences.setdefault(key, []).extend(blocks)

    def grow_row(self, key: int, count: int) -> None:
        mine = self.sequences.get(key, [])
        if not mine:
            return
        owned = {block for blocks in self.sequences.values() for block in blocks}
        row = self.allocator.allocate_row(mine, len(mine) + count)
        if row is None:
            return
        assert row == list(range(row[0], row[0] + len(mine) + count))
        if row[0] != mine[0]:
            assert not set(row) & owned
            self.allocator.free(mine)
        else:
            assert row[: len(mine)] == mine
            assert not set(row[len(mine) :]) & owned
        self.names = {name: block for name, block in self.names.items() if self.allocator.find(name) is not None}
        self.sequences[key] = row

    def publish(self, key: int, identity: bytes) -> None:
        block = next((block for block in self.sequences.get(key, []) if block not in self.names.values()), None)
        if block is not None:
            known = self.allocator.find(identity)
            self.allocator.identify(block, identity)
            assert self.allocator.find(identity) == (block if known is None else known)
            if known is None:
                self.names[identity] = block

    def hit(self, key: int, identity: bytes) -> None:
        block = self.allocator.find(identity)
        if block is not None and block not in self.sequences.get(key, []):
            assert block == self.names[identity]
            owned = any(block in blocks for blocks in self.sequences.values())
            assert self.allocator.num_unowned([block]) == (not owned)
            self.allocator.share([block])
            self.sequences.setdefault(key, []).append(block)

    def check(self) -> None:
        owned = {block for blocks in self.sequences.values() for block in blocks}
        assert self.allocator.num_free == self.allocator.num_blocks - 1 - len(owned)
        for identity, block in self.names.items():
            assert self.allocator.find(identity) in (block, None)
            assert block not in owned or self.allocator.find(identity) == block, "what is owned is not forgotten"


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    num_blocks=st.integers(2, 40),
    actions=st.lists(
        st.tuples(st.sampled_from(["grow", "row", "free", "publish", "hit"]), st.integers(0, 3), st.integers(0, 12)),
        max_size=100,
    ),
)
def test_no_block_is_owned_wrongly_or_leaked(num_blocks: int, actions: list[tuple[str, int, int]]) -> None:
    checked = Checked(num_blocks)
    for action, key, number in actions:
        if action == "grow":
            checked.grow(key, number)
        elif action == "free":
            checked.allocator.free(checked.sequences.pop(key, []))
        elif action == "row":
            checked.grow_row(key, number)
        elif action == "publish":
            checked.publish(key, bytes([number]))
        else:
            checked.hit(key, bytes([number]))
        checked.check()
    for blocks in checked.sequences.values():
        checked.allocator.free(blocks)
    everything = checked.allocator.allocate(num_blocks - 1)
    assert everything is not None
    assert sorted(everything) == list(range(1, num_blocks))
    assert all(checked.allocator.find(identity) is None for identity in checked.names)


def identified(allocator: BlockAllocator, *identities: bytes) -> list[int]:
    """Blocks of a sequence, each with an identity."""
    blocks = allocator.allocate(len(identities))
    assert blocks is not None
    for block, identity in zip(blocks, identities, strict=True):
        allocator.identify(block, identity)
    return blocks


def test_a_freed_block_is_found_until_it_is_reused() -> None:
    allocator = BlockAllocator(5)
    blocks = identified(allocator, b"a", b"b")
    allocator.free(blocks)
    assert allocator.num_free == 4
    assert [allocator.find(identity) for identity in (b"a", b"b", b"c")] == [1, 2, None]
    assert allocator.allocate(2) == [3, 4], "those that hold nothing go first"
    assert allocator.find(b"b") == 2
    assert allocator.allocate(1) == [2], "the end of a text is forgotten before its beginning"
    assert (allocator.find(b"a"), allocator.find(b"b")) == (1, None)
    assert allocator.allocate(1) == [1]
    assert allocator.find(b"a") is None
    assert allocator.num_free == 0


def test_the_blocks_freed_longest_ago_are_forgotten_first() -> None:
    allocator = BlockAllocator(5)
    for identity in (b"a", b"b", b"c", b"d"):
        allocator.free(identified(allocator, identity))
    a = allocator.find(b"a")
    assert a is not None
    allocator.share([a])
    allocator.free([a])
    order: list[bytes] = []
    for _ in range(4):
        assert allocator.allocate(1) is not None
        order += [name for name in (b"a", b"b", b"c", b"d") if allocator.find(name) is None and name not in order]
    assert order == [b"b", b"c", b"d", b"a"]


def test_a_block_is_free_when_its_last_owner_has_left() -> None:
    allocator = BlockAllocator(5)
    blocks = identified(allocator, b"a", b"b")
    allocator.share(blocks[:1])
    assert allocator.num_unowned(blocks) == 0
    allocator.free(blocks)
    assert (allocator.num_free, allocator.num_unowned(blocks)) == (3, 1)
    assert allocator.allocate(3) is not None
    assert allocator.allocate(1) is None
    assert (allocator.find(b"a"), allocator.find(b"b")) == (1, None)
    allocator.free(blocks[:1])
    with pytest.raises(EyrieError, match="block 1 is freed but not owned"):
        allocator.free(blocks[:1])


def test_of_two_blocks_with_the_same_text_the_first_is_found() -> None:
    allocator = BlockAllocator(5)
    first, second = identified(allocator, b"a"), identified(allocator, b"a")
    assert allocator.find(b"a") == first[0]
    allocator.free(first)
    allocator.free(second)
    assert (allocator.find(b"a"), allocator.num_free) == (first[0], 4)


def test_a_row_goes_on_behind_known_blocks_or_elsewhere() -> None:
    allocator = BlockAllocator(12)
    assert allocator.allocate(3) == [1, 2, 3]
    assert allocator.allocate_row([1, 2, 3], 5) == [1, 2, 3, 4, 5]
    assert allocator.num_free == 6
    assert allocator.allocate_row([1, 2], 5) == [6, 7, 8, 9, 10]
    assert allocator.allocate_row([1, 2], 3) is None
    assert allocator.num_free == 1
    assert allocator.allocate_row([9, 10], 3) == [9, 10, 11]
    allocator.free([2, 4, 5])
    assert allocator.allocate_row([1, 3], 3) is None
    assert allocator.allocate_row([3, 1], 2) == [4, 5]
    assert allocator.num_free == 1


def test_what_a_block_is_does_not_change_while_it_is_kept() -> None:
    allocator = BlockAllocator(5)
    blocks = identified(allocator, b"a")
    allocator.identify(blocks[0], b"a")
    with pytest.raises(EyrieError, match="block 1 cannot be identified: it is not owned, or has another identity"):
        allocator.identify(blocks[0], b"b")
    with pytest.raises(EyrieError, match="block 2 cannot be identified"):
        allocator.identify(2, b"b")
    with pytest.raises(EyrieError, match="block 2 is shared but holds nothing"):
        allocator.share([2])


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
