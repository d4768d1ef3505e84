"""Confidence intervals by resampling."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap  # pyright: ignore[reportMissingTypeStubs]

Indices = NDArray[np.intp]
Floats = NDArray[np.float64]
RESAMPLES = 999


class Interval(NamedTuple):
    """Where a figure lies with the given confidence."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


def interval(
    statistic: Callable[..., Floats], counts: tuple[int, ...], confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Percentile bootstrap of `statistic` over independent samples of `counts` units.

    `statistic` is given an index array [..., count] a sample and reduces its last axis: so a unit may be a pair, a
    block of steps or a whole answer. With fewer than two units in a sample nothing is known: -inf to inf.
    """
    if min(counts) < 2:
        return Interval(-np.inf, np.inf)

    def of_samples(*samples: Floats, axis: int = -1) -> Floats:
        return statistic(*(sample.astype(np.intp) for sample in samples))

    found = bootstrap(
        tuple(np.arange(count) for count in counts),
        of_samples,
        n_resamples=RESAMPLES,
        vectorized=True,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(found.low), float(found.high))
