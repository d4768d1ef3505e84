"""Poisson arrivals, by seed."""

from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from benchmarks.load.arrivals import poisson_gaps


def test_gaps_are_exponential_with_the_rates_mean() -> None:
    gaps = list(islice(poisson_gaps(4.0, "seed"), 20_000))
    # Of an exponential, mean and deviation are equal; both within five standard errors.
    assert fmean(gaps) == pytest.approx(0.25, rel=5 / 20_000**0.5)
    assert pstdev(gaps) == pytest.approx(0.25, rel=0.05)
    # Without memory: a gap says nothing of the next.
    covariance = fmean((a - 0.25) * (b - 0.25) for a, b in pairwise(gaps))
    assert abs(covariance) / 0.25**2 < 5 / 20_000**0.5


def test_a_seed_gives_the_same_arrivals_and_another_gives_others() -> None:
    one, again, other = (list(islice(poisson_gaps(2.0, seed), 5)) for seed in ("0 1", "0 1", "0 2"))
    assert one == again
    assert one != other


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(ValueError, match=f"rate: got {rate}; allowed: arrivals a second above 0"):
        next(poisson_gaps(rate, ""))
