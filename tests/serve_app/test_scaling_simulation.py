"""The policy `tpot` on loads in virtual time: the target is kept, and the number of replicas changes seldom."""

import math
from itertools import pairwise
from typing import Any

import pytest

from tests.serve_app.scaling_simulator import Outcome, simulate

TARGET_S = 0.060
SCALING: dict[str, Any] = {"min_replicas": 1, "max_replicas": 6, "downscale_delay_s": 120}
"""A replica is at its target with ten sequences of the sixteen that it runs."""


def turns(outcome: Outcome) -> int:
    """How often growing and shrinking took turns."""
    signs = [late > early for early, late in pairwise(outcome.counts)]
    return sum(one != other for one, other in pairwise(signs))


def late_turns(outcome: Outcome, after_s: float) -> list[tuple[float, int]]:
    return [(time, count) for time, count in outcome.targets if time > after_s]


@pytest.mark.parametrize("seed", range(8))
def test_a_steady_load_keeps_its_replicas(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    settings = SCALING | {"downscale_delay_s": 600}
    outcome = simulate(monkeypatch, lambda _: 1.5, 1500, settings, seed=seed)
    assert outcome.within(TARGET_S) > 0.98
    assert late_turns(outcome, 60) == late_turns(outcome, 60)[:1]
    assert turns(outcome) <= 1


@pytest.mark.parametrize("seed", range(2))
def test_a_step_of_six_times_the_load_is_answered_within_the_start_up(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    outcome = simulate(monkeypatch, lambda time: 0.5 if time < 120 else 3.0, 500, SCALING, seed=seed)
    # What the step finds, one or two replicas, is too slow until the new ones have come, and no longer.
    late = [tpot for end, tpot in outcome.tpots if end > 120 + 45]
    assert sum(tpot <= TARGET_S for tpot in late) / len(late) > 0.98
    assert outcome.within(TARGET_S) > 0.93
    assert max(outcome.counts) >= 4
    assert turns(outcome) <= 3


@pytest.mark.parametrize("seed", range(2))
def test_a_ramp_never_breaks_the_target(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    outcome = simulate(monkeypatch, lambda time: 0.5 + 2.5 * min(1, time / 300), 600, SCALING, seed=seed)
    assert outcome.within(TARGET_S) > 0.98
    assert max(outcome.waits) < 1.0
    assert max(outcome.counts) >= 4


def test_after_a_burst_the_replicas_go(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = simulate(monkeypatch, lambda time: 3.5 if 200 < time < 215 else 0.3, 700, SCALING)
    assert max(outcome.counts) > 2
    assert outcome.counts[-1] == 1
    assert turns(outcome) <= 3


def test_a_day_is_followed_up_and_down(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = simulate(monkeypatch, lambda time: 1.8 - 1.6 * math.cos(2 * math.pi * time / 1200), 2400, SCALING)
    assert outcome.within(TARGET_S) > 0.98
    assert max(outcome.counts) >= 4
    assert min(count for time, count in outcome.targets if 600 < time < 1500) <= 2
    assert turns(outcome) <= 8


def test_zero_is_reached_and_left_with_no_request_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SCALING | {"min_replicas": 0, "downscale_delay_s": 30, "downscale_to_zero_delay_s": 30}
    outcome = simulate(monkeypatch, lambda time: 0.3 if time < 60 or time > 300 else 0, 400, settings)
    assert outcome.counts[0] == 0
    assert 0 in [count for time, count in outcome.targets if 60 < time < 300]
    assert outcome.counts[-1] >= 1
    assert outcome.num_lost == 0
    # The first request waited for the replica to start, and was answered.
    assert 12.0 <= max(outcome.waits) < 13.0


def test_slow_first_seconds_of_a_replica_start_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = simulate(monkeypatch, lambda _: 0.8, 400, SCALING | {"initial_replicas": 2})
    settings = SCALING | {"initial_replicas": 1}
    noisy = simulate(monkeypatch, lambda _: 0.8, 400, settings, noisy_first_s=5)
    assert max(noisy.counts) <= max(quiet.counts) + 1
