"""The decision: what each figure asks for, and what no figure can bring about."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.scaling_decision import DeploymentLoad, ReplicaLoad, ScalingTargets, TpotCurve, decide, learned

TARGETS = ScalingTargets(tpot_s=0.05, max_num_seqs=8)


def load(*replicas: ReplicaLoad, target: int | None = None, queued: float = 0, **more: float) -> DeploymentLoad:
    return DeploymentLoad(replicas, 0, queued, len(replicas) if target is None else target, **more)


def busy(
    running: float,
    waiting: float = 0,
    waiting_prompt_tokens: float = 0,
    kv_use: float = 0.1,
    batch_size: float | None = None,
    tpot_s: float | None = None,
) -> ReplicaLoad:
    return ReplicaLoad(running, waiting, waiting_prompt_tokens, kv_use, batch_size, tpot_s)


def curve(*points: tuple[float, float]) -> TpotCurve:
    found = TpotCurve()
    for batch_size, tpot_s in points:
        found = found.observed(batch_size, tpot_s, 0)
    return found


LINE = curve((1, 0.012), (4, 0.030), (2, 0.018), (6, 0.042))


def test_the_curve_is_the_line_through_what_was_seen() -> None:
    assert LINE.at(5) == pytest.approx(0.036)
    assert LINE.at(1) == pytest.approx(0.012)


def test_one_point_is_pessimistic_both_ways() -> None:
    lone = curve((4, 0.04))
    assert lone.at(8) == pytest.approx(0.08)
    assert lone.at(1) == pytest.approx(0.04)


def test_a_falling_line_is_taken_as_flat_and_a_steep_one_as_proportional() -> None:
    assert curve((1, 0.04), (4, 0.02)).at(8) == pytest.approx(0.03, rel=0.02)
    assert curve((2, 0.01), (4, 0.08)).at(0.001) >= 0


def test_another_k_is_another_curve() -> None:
    assert LINE.observed(1, 0.02, 3).at(1) == pytest.approx(0.02)


def test_what_replicas_observe_is_learned() -> None:
    seen = learned(TpotCurve(), load(busy(4, batch_size=4.0, tpot_s=0.03), busy(0)))
    assert seen.at(4) == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("found", "replicas", "reason"),
    [
        (load(busy(4)), 1, "steady"),
        # 0.045 s a token are reached at 6.5 sequences.
        (load(busy(7)), 2, "expected TPOT"),
        (load(busy(6), queued=6), 2, "sequences"),
        (load(busy(4), demand_slope=0.5), 2, "sequences"),
        (load(busy(8, waiting=20)), 5, "expected TPOT"),
        (load(busy(4, kv_use=0.85)), 2, "KV use"),
        (load(busy(4, waiting=1, waiting_prompt_tokens=5000)), 2, "waiting prompt tokens"),
        (load(busy(3, batch_size=3.0, tpot_s=0.047)), 2, "observed TPOT"),
        # The second is on its way already.
        (load(busy(7), target=2), 2, "steady"),
        (load(busy(1), busy(1), peak_demand=2), 1, "fewer: one holds it"),
        # The others would come too near to the target.
        (load(busy(3), busy(3), peak_demand=6), 2, "steady"),
        (load(busy(1), busy(1), peak_demand=8), 2, "steady"),
        (load(busy(0), busy(0)), 0, "fewer: no demand"),
    ],
)
def test_each_figure_counts(found: DeploymentLoad, replicas: int, reason: str) -> None:
    decision = decide(found, TARGETS, LINE, 0, 8)
    assert (decision.num_replicas, decision.reason) == (replicas, reason)


def test_without_any_time_observed_the_batch_decides() -> None:
    assert decide(load(busy(8)), TARGETS, TpotCurve(), 0, 8).num_replicas == 2
    assert decide(load(busy(7)), TARGETS, TpotCurve(), 0, 8).num_replicas == 1


def test_a_guess_adds_one_replica_at_a_time() -> None:
    guess = curve((4, 0.04))
    assert decide(load(busy(8, waiting=20)), TARGETS, guess, 0, 8).num_replicas == 2
    assert decide(load(busy(8, waiting=20), target=2), TARGETS, guess, 0, 8).num_replicas == 2
    assert decide(load(busy(8, waiting=20)), TARGETS, LINE, 0, 8).num_replicas == 5


def test_nobody_goes_while_one_is_silent() -> None:
    found = load(busy(0), busy(0))
    assert decide(replace(found, num_silent=1, target_replicas=3), TARGETS, LINE, 0, 8).num_replicas == 3


def test_one_sequence_a_replica_is_the_end_however_slow() -> None:
    slow = curve((1, 0.5))
    assert decide(load(busy(1, batch_size=1.0, tpot_s=0.5)), TARGETS, slow, 0, 8).num_replicas == 1
    three = [busy(1, batch_size=1.0, tpot_s=0.5)] * 3
    assert decide(load(*three, peak_demand=3), TARGETS, slow, 0, 8).num_replicas == 3


def test_a_target_that_one_stream_misses_starts_no_replica_that_cannot_help() -> None:
    flat = curve((1, 0.2), (3, 0.2))
    assert decide(load(busy(3, batch_size=3.0, tpot_s=0.2)), TARGETS, flat, 0, 8).num_replicas == 1


figures = st.floats(0, 1e6)
batch_sizes, times = st.floats(1, 64), st.floats(1e-6, 1e3)
loads = st.builds(ReplicaLoad, figures, figures, figures, st.floats(0, 1), st.none() | batch_sizes, st.none() | times)


@given(
    st.lists(loads, max_size=6),
    st.integers(0, 3),
    figures,
    st.integers(0, 40),
    st.floats(-1e3, 1e3),
    figures,
    st.lists(st.tuples(batch_sizes, times), max_size=20),
    st.integers(0, 10),
    st.integers(0, 30),
)
def test_bounds_hold_whatever_is_told(
    replicas: list[ReplicaLoad],
    silent: int,
    queued: float,
    target: int,
    slope: float,
    peak: float,
    points: list[tuple[float, float]],
    least: int,
    more: int,
) -> None:
    found = DeploymentLoad(tuple(replicas), silent, queued, target, slope, peak)
    most = max(1, least + more)
    decision = decide(found, TARGETS, learned(curve(*points), found), least, most)
    assert least <= decision.num_replicas <= most
    # Asked again of the same load with what it decided on its way, it never goes back.
    again = decide(replace(found, target_replicas=decision.num_replicas), TARGETS, curve(*points), least, most)
    if decision.num_replicas > target:
        assert again.num_replicas >= decision.num_replicas


@given(st.lists(st.tuples(batch_sizes, times), min_size=1, max_size=20))
def test_the_curve_never_falls(points: list[tuple[float, float]]) -> None:
    found = curve(*points)
    expected = [found.at(batch) for batch in (1, 2, 4, 8, 16)]
    assert all(late >= early - 1e-12 for early, late in pairwise(expected))
