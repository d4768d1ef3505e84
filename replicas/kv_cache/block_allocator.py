"""Who owns which KV block, and which of those that nobody owns still hold a known piece of text. No torch."""

from collections.abc import Iterable, Sequence
from itertools import islice

from replicas.errors import EyrieError


def is_row(blocks: Sequence[int]) -> bool:
    """True if `blocks` are neighbours in ascending order."""
    return all(block == blocks[0] + index for index, block in enumerate(blocks))


class BlockAllocator:
    """Hands out block ids 1..num_blocks - 1; block 0 is the null block that padding writes to.

    A block may have several owners, and an identity, which says what its KV is. Freed with an identity it stays
    findable until it is needed for something else; then the blocks freed longest ago go first.

    A sequence gets neighbouring blocks whenever they are free, since a device may attend such a run in place.
    A new sequence therefore starts in the middle of the longest free run: its neighbour keeps room to grow.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        """Blocks that nobody owns, with an identity or without."""
        self._owners = [0] * num_blocks
        self._blank = bytearray([0]) + bytearray([1]) * (num_blocks - 1)
        """1: free and without identity."""
        self._idle: dict[int, None] = {}
        """Free with an identity, the one that was freed first in front."""
        self._identities: dict[int, bytes] = {}
        self._blocks: dict[bytes, int] = {}

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` blocks, following block `after` where possible; None (and nothing taken) if fewer are free."""
        if count > self.num_free:
            return None
        self._make_room(count, after)
        blocks: list[int] = []
        while len(blocks) < count:
            block = self._next_blank(count - len(blocks), blocks[-1] if blocks else after)
            self._take(block)
            blocks.append(block)
        return blocks

    def allocate_row(self, known: Sequence[int], count: int) -> list[int] | None:
        """`count` neighbours: `known` ones of the caller's with those behind them, or else new ones in their place.

        None (and nothing taken) if neither is free.
        """
        first, new = known[0], count - len(known)
        if not is_row(known) or not self._are_blank(known[-1] + 1, new):
            if count > self.num_free:
                return None
            self._make_room(count, None)
            (first, length), new = self._longest_run(), count
            if length < count:
                return None
        row = list(range(first, first + count))
        for block in row[count - new :]:
            self._take(block)
        return row

    def find(self, identity: bytes) -> int | None:
        """The block with `identity`, owned or free."""
        return self._blocks.get(identity)

    def num_unowned(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody owns: so many free ones `share` would use up."""
        return sum(not self._owners[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Make the caller one more owner of each of `blocks`. Raises EyrieError if one holds nothing to share."""
        for block in blocks:
            if not self._owners[block]:
                if block not in self._idle:
                    raise EyrieError(f"block {block} is shared but holds nothing")
                del self._idle[block]
                self.num_free -= 1
            self._owners[block] += 1

    def identify(self, block: int, identity: bytes) -> None:
        """From now on `block` is found by `identity`, unless another one already is.

        Raises EyrieError if `block` is not owned, or is something else already.
        """
        if not self._owners[block] or self._identities.get(block, identity) != identity:
            raise EyrieError(f"block {block} cannot be identified: it is not owned, or has another identity")
        if identity not in self._blocks:
            self._blocks[identity] = block
            self._identities[block] = identity

    def free(self, blocks: Sequence[int]) -> None:
        """End one ownership of each of `blocks`, a sequence's in order. Raises EyrieError if one is not owned."""
        # The last first: without the block before it in the text, a block is never found.
        for block in reversed(blocks):
            if not 0 < block < self.num_blocks or not self._owners[block]:
                raise EyrieError(f"block {block} is freed but not owned")
            self._owners[block] -= 1
            if self._owners[block]:
                continue
            self.num_free += 1
            if block in self._identities:
                self._idle[block] = None
            else:
                self._blank[block] = 1

    def _take(self, block: int) -> None:
        self._blank[block] = 0
        self._owners[block] = 1
        self.num_free -= 1

    def _make_room(self, count: int, after: int | None) -> None:
        """Take identities away, those of the blocks that were freed first, until `count` blank blocks lie in a row.

        Several at once: the blocks of a sequence lie together and were freed together, and so leave room to grow in.
        Not more than are needed in all if they come to lie apart, since the cache is worth more than the row.
        """
        several = max(1, self.num_blocks // 8)
        taken = 0
        while taken < count and not self._has_run(count, after):
            for block in list(islice(self._idle, several)):
                del self._idle[block]
                del self._blocks[self._identities.pop(block)]
                self._blank[block] = 1
            taken += several

    def _has_run(self, count: int, after: int | None) -> bool:
        """True if `count` blank blocks lie side by side, behind `after` or anywhere."""
        if after is not None and self._are_blank(after + 1, count):
            return True
        return self._longest_run()[1] >= count

    def _are_blank(self, first: int, count: int) -> bool:
        return self._blank[first : first + count].count(1) == count

    def _next_blank(self, count: int, last: int | None) -> int:
        """The blank block after `last`, or else the one where a run of `count` had best begin."""
        if last is not None and last + 1 < self.num_blocks and self._blank[last + 1]:
            return last + 1
        start, length = self._longest_run()
        alone = self.num_free == self.num_blocks - 1
        return start if alone or length < 3 or length < 2 * count else start + length // 2

    def _longest_run(self) -> tuple[int, int]:
        """First block and length of the longest run of blank blocks."""
        best_start, best_length = 0, 0
        start = self._blank.find(1)
        while start != -1:
            end = self._blank.find(0, start)
            end = self.num_blocks if end == -1 else end
            if end - start > best_length:
                best_start, best_length = start, end - start
            start = self._blank.find(1, end)
        return best_start, best_length
