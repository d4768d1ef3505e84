"""Policies that choose K. `replicas` declares the protocol; a deployment injects one of these."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FixedK:
    """The same K whatever the batch."""

    k: int

    def num_speculative_tokens(self, batch_size: int) -> int:
        """Draft tokens of a step that runs `batch_size` sequences."""
        return self.k
