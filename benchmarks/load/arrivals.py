"""When the requests of an open load arrive: at moments of their own, whatever the server does."""

import math
import random
from collections.abc import Iterator


def poisson_gaps(rate: float, seed: str) -> Iterator[float]:
    """Seconds between the arrivals of a Poisson process with `rate` a second: exponential, the same for a seed.

    Several such processes together are one whose rate is their sum. Raises ValueError for a rate not above 0.
    """
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"rate: got {rate}; allowed: arrivals a second above 0")
    chance = random.Random(seed)
    while True:
        yield chance.expovariate(rate)
