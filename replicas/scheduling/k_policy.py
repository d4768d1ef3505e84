"""Who chooses K: the scheduler asks before each step, serve_app or a benchmark injects the answer."""

from typing import Protocol


class KPolicy(Protocol):
    """Number of draft tokens by batch size."""

    def num_speculative_tokens(self, batch_size: int) -> int:
        """K for a step over `batch_size` decoding sequences; the scheduler caps it at the compiled maximum."""
        ...
