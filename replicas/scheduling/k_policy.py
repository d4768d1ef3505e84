"""Who chooses K: the scheduler asks before each step, serve_app or a benchmark injects the answer."""

from collections.abc import Collection
from typing import Protocol

from replicas.errors import ConfigError


class KPolicy(Protocol):
    """Number of draft tokens by batch size."""

    def num_speculative_tokens(self, batch_size: int) -> int:
        """K for a step over `batch_size` decoding sequences; one of those that the engine has programs for."""
        ...


def allowed_k(policy: KPolicy, batch_size: int, allowed: Collection[int]) -> int:
    """What `policy` says for `batch_size`. Raises ConfigError for a K that is not among `allowed`."""
    k = policy.num_speculative_tokens(batch_size)
    if k not in allowed:
        raise ConfigError(
            f"the K policy wants {k} draft tokens (num_speculative_tokens) for a batch of {batch_size}; "
            f"this engine was built for {sorted(allowed)}"
        )
    return k
