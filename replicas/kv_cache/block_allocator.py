"""Who owns which KV block. No torch: the scheduler plans with it, tests drive it alone."""

from collections.abc import Iterable

from replicas.errors import EyrieError


class BlockAllocator:
    """Hands out block ids 1..num_blocks - 1; block 0 is the null block that padding writes to.

    A sequence gets neighbouring blocks whenever they are free, since a device may attend such a run in place.
    A new sequence therefore starts in the middle of the longest free run: its neighbour keeps room to grow.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = bytearray([0]) + bytearray([1]) * (num_blocks - 1)
        self.num_free = num_blocks - 1

    def allocate(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` blocks, following block `after` where possible; None (and nothing taken) if fewer are free."""
        if count > self.num_free:
            return None
        blocks: list[int] = []
        for _ in range(count):
            last = blocks[-1] if blocks else after
            block = self._neighbour(last)
            self._free[block] = 0
            blocks.append(block)
        self.num_free -= count
        return blocks

    def _neighbour(self, last: int | None) -> int:
        if last is not None and last + 1 < self.num_blocks and self._free[last + 1]:
            return last + 1
        start, length = self._longest_run()
        return start if self.num_free == self.num_blocks - 1 or length < 3 else start + length // 2

    def _longest_run(self) -> tuple[int, int]:
        """First block and length of the longest run of free blocks."""
        best_start, best_length = 0, 0
        start = self._free.find(1)
        while start != -1:
            end = self._free.find(0, start)
            end = self.num_blocks if end == -1 else end
            if end - start > best_length:
                best_start, best_length = start, end - start
            start = self._free.find(1, end)
        return best_start, best_length

    def free(self, blocks: Iterable[int]) -> None:
        """Take `blocks` back. Raises EyrieError if one is not owned: then two sequences shared it."""
        for block in blocks:
            if not 0 < block < self.num_blocks or self._free[block]:
                raise EyrieError(f"block {block} is freed but not owned")
            self._free[block] = 1
            self.num_free += 1
