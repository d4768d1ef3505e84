"""Which replica was sent which beginning of a prompt: what its prefix cache may hold. Bounded, and without Ray."""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from hashlib import blake2b

from serve_app.generation import GenerationJob

CHUNK_BYTES = 128
"""A step of the comparison; about 32 tokens of English, two KV blocks."""
MAX_CHUNKS = 256
"""Of a prompt; what follows is not compared."""
MAX_OWNERS = 4
"""Replicas remembered for one beginning, the latest ones."""


def prompt_bytes(job: GenerationJob) -> bytes:
    """The prompt, such that prompts whose tokens begin alike begin alike here."""
    prompt = job.prompt
    if isinstance(prompt, str):
        return prompt.encode("utf-8", "surrogatepass")
    parts = [repr(job.tools).encode()] if job.tools else []
    for part in prompt:
        if isinstance(part, int):
            parts.append(array("q", (part,)).tobytes())
        else:
            parts.append(repr((part.role, part.content, part.tool_calls)).encode("utf-8", "surrogatepass"))
    return b"".join(parts)


def prefix_ids(prompt: bytes) -> list[bytes]:
    """An id for each whole chunk of `prompt` and all that is before it; 8 bytes each."""
    ids: list[bytes] = []
    parent = b""
    for start in range(0, min(len(prompt) - CHUNK_BYTES + 1, CHUNK_BYTES * MAX_CHUNKS), CHUNK_BYTES):
        parent = blake2b(parent + prompt[start : start + CHUNK_BYTES], digest_size=8).digest()
        ids.append(parent)
    return ids


class PrefixMemory:
    """The replicas by prefix id. The one not asked for longest is forgotten first."""

    def __init__(self, max_prefixes: int) -> None:
        self._max_prefixes = max_prefixes
        self._owners: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def matches(self, ids: Sequence[bytes], replicas: Collection[str]) -> dict[str, int]:
        """How many of the first `ids` each of `replicas` was sent; those that were sent none are left out."""
        found: dict[str, int] = {}
        for count, prefix in enumerate(ids, start=1):
            owners = self._owners.get(prefix)
            if owners is None:
                break
            self._owners.move_to_end(prefix)
            for owner in owners:
                # Without the chunk before it nobody can use this one.
                if owner in replicas and found.get(owner, 0) == count - 1:
                    found[owner] = count
        return found

    def remember(self, ids: Sequence[bytes], replica: str) -> None:
        """`replica` was sent a prompt with these `ids`."""
        # The beginning last: it is forgotten after what only goes on from it.
        for prefix in reversed(ids):
            others = (owner for owner in self._owners.pop(prefix, ()) if owner != replica)
            self._owners[prefix] = (replica, *others)[:MAX_OWNERS]
        while len(self._owners) > self._max_prefixes:
            self._owners.popitem(last=False)
