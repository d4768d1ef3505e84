"""K policies for tests."""

import random

from replicas.scheduling.k_policy import DraftFeedback


class FixedK:
    """K is `k`, which a test may change between steps."""

    def __init__(self, k: int) -> None:
        self.k = k

    def num_speculative_tokens(self, batch_size: int) -> int:
        return self.k

    def observe(self, feedback: DraftFeedback) -> None:
        pass


class RandomK:
    """Another K at every question, from 0 to `largest`."""

    def __init__(self, seed: int, largest: int) -> None:
        self._random = random.Random(seed)
        self._largest = largest

    def num_speculative_tokens(self, batch_size: int) -> int:
        return self._random.randint(0, self._largest)

    def observe(self, feedback: DraftFeedback) -> None:
        pass
