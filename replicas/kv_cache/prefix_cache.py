"""Finding KV that another sequence, or the same one before it was preempted, has computed already. No torch."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from replicas.kv_cache.block_allocator import BlockAllocator


class PrefixCache:
    """Gives full blocks the identity of their text, and finds the longest run of them that a text begins with.

    A block is identified by all tokens up to and including the one that follows it: the drafter's KV in its last slot
    is computed from that token. So a hit is right for target and drafter, and never covers the last token of a text.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self._allocator = allocator
        self._block_size = block_size

    def find(self, identities: Sequence[bytes]) -> list[int]:
        """Blocks of the longest known beginning of `identities`; not owned by the caller yet."""
        blocks: list[int] = []
        for identity in identities:
            block = self._allocator.find(identity)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def publish(self, blocks: Sequence[int], identities: Sequence[bytes]) -> None:
        """Make computed `blocks` findable; their KV must never change again."""
        for block, identity in zip(blocks, identities, strict=True):
            self._allocator.identify(block, identity)

    def extend(self, identities: list[bytes], token_ids: Sequence[int]) -> None:
        """Add to `identities` those of the blocks that are full in `token_ids` and not in it yet."""
        size = self._block_size
        while (len(identities) + 1) * size < len(token_ids):
            start = len(identities) * size
            identities.append(_identity(identities[-1] if identities else b"", token_ids[start : start + size + 1]))


def _identity(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Of a block after the one identified by `parent`; cryptographic, since callers choose the tokens."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=32).digest()
