"""Which replica gets a request: pure functions of what is known of each. Without Ray."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serve_app.generation import GenerationJob
from serve_app.prefix_memory import CHUNK_BYTES

BYTES_A_TOKEN = 4
"""Of English text; it only weighs prompts against outputs."""
EXPECTED_OUTPUT_TOKENS = 256
"""Of a request that allows as many or more: most answers end by themselves."""
FULLEST = 0.95


@dataclass(frozen=True, slots=True)
class ReplicaPressure:
    """What a replica has before it."""

    own_tokens: float = 0.0
    """Prompt and output tokens of requests that this router sent and that have not ended."""
    own_requests: int = 0
    """The most there were of them since the replica told the following."""
    told_requests: float = 0.0
    """Running and waiting, as the replica last told: those of other routers are among them."""
    kv_use: float = 0.0
    """0 to 1, of the KV blocks, as it last told."""

    @property
    def tokens(self) -> float:
        """Unfinished work. What KV is short of counts double, or more: soon sequences would be preempted."""
        others = max(0.0, self.told_requests - self.own_requests) * EXPECTED_OUTPUT_TOKENS
        return (self.own_tokens + others) / (1.0 - min(max(self.kv_use, 0.0), FULLEST))


def expected_tokens(job: GenerationJob, num_bytes: int) -> float:
    """The work that a prompt of `num_bytes` brings: it is decoded step by step, but read in large pieces."""
    limit = job.sampling.max_tokens
    output = EXPECTED_OUTPUT_TOKENS if limit is None else min(limit, EXPECTED_OUTPUT_TOKENS)
    return output * job.num_choices + num_bytes / BYTES_A_TOKEN / 8


def ranked(
    pressures: Mapping[str, ReplicaPressure], matches: Mapping[str, int], imbalance_tokens: float
) -> Sequence[str]:
    """The replicas of `pressures`, the one to try first in front.

    The one with the longest match (chunks) comes first, unless it has `imbalance_tokens` more before it than the least
    loaded one, which then does. All others follow by load; of equals the longer match, then their order in `pressures`.
    """
    by_load = sorted(pressures, key=lambda name: (pressures[name].tokens, -matches.get(name, 0)))
    if not by_load or not matches:
        return by_load
    least = pressures[by_load[0]].tokens
    near = [name for name in by_load if pressures[name].tokens - least <= imbalance_tokens]
    best = max(near, key=lambda name: matches.get(name, 0))
    if not matches.get(best):
        return by_load
    return [best, *(name for name in by_load if name != best)]


def matched_bytes(matches: Mapping[str, int], replica: str) -> int:
    """How much of a prompt `replica` was sent before."""
    return matches.get(replica, 0) * CHUNK_BYTES
