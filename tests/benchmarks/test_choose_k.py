"""Schedules chosen from the rows of a machine whose costs are known."""

from itertools import pairwise

import pytest

from benchmarks.choose_k import as_vllm, best_fixed_k, choose_buckets, expected_tpot, make_schedule, surely_pays
from benchmarks.fit.fit import Fit, fit_sweep
from serve_app.k_schedule import KBucket
from tests.benchmarks.synthetic_machine import Machine
from tests.serve_app.k_schedules import schedule

# Rows cost so much here that speculation pays alone, and not in a batch.
MACHINE = Machine(row=1.2, stair=0.0)
BATCHES = (1, 2, 4, 8, 16)


@pytest.fixture(scope="module")
def fit() -> Fit:
    return fit_sweep(MACHINE.sweep(batches=BATCHES))


def true_best(batch: int) -> int:
    return min(range(6), key=lambda k: MACHINE.tpot_ms(batch, k))


def as_pairs(buckets: list[KBucket]) -> list[tuple[int, int]]:
    return [(bucket.from_batch, bucket.k) for bucket in buckets]


def test_each_batch_gets_a_k_within_the_margin_of_the_true_best(fit: Fit) -> None:
    made = make_schedule(fit, {"measured": "now"})
    assert (made.model, made.device, made.method) == ("toy", "cpu", "eagle3")
    assert true_best(1) > true_best(16) == 0, "or the test says nothing"
    assert made.k_of(1) > made.k_of(16) == 0
    for batch in BATCHES:
        lost = MACHINE.tpot_ms(batch, made.k_of(batch)) / MACHINE.tpot_ms(batch, true_best(batch))
        assert lost < 1.05
        assert MACHINE.tpot_ms(batch, made.k_of(batch)) <= MACHINE.tpot_ms(batch, 0)
    assert made.step_ms[4][2] == pytest.approx(1.1 * MACHINE.step_ms(4, 2), rel=0.01)
    assert made.provenance == {"measured": "now"}


def test_k_changes_with_the_batch_only_if_it_is_worth_it(fit: Fit) -> None:
    greedy, steady = choose_buckets(fit, margin=0.0), choose_buckets(fit, margin=0.5)
    assert len(steady) <= len(greedy)
    first = steady[0].k
    kept = [batch for batch in BATCHES if surely_pays(fit, batch, first)]
    # Half as slow again is accepted, but never a K that loses to 0.
    assert all(schedule(buckets=[dict(bucket) for bucket in steady]).k_of(batch) == first for batch in kept[:2])
    assert steady[-1].k == 0


def test_a_gain_that_noise_may_have_made_is_none() -> None:
    # Drafts are right so seldom that K = 1 just about pays for itself.
    noisy = Machine(right=(0.08,), row=0.1, stair=0.0, draft=0.55, noise=0.3)
    fit = fit_sweep(noisy.sweep([0, 1], [1], repeats=1))
    assert not surely_pays(fit, 1, 1)
    assert as_pairs(choose_buckets(fit)) == [(1, 0)]


def test_between_measured_batches_the_smaller_k_holds(fit: Fit) -> None:
    made = make_schedule(fit, {})
    measured = {batch: made.k_of(batch) for batch in BATCHES}
    for smaller, larger in pairwise(BATCHES):
        for batch in range(smaller + 1, larger):
            assert made.k_of(batch) == min(measured[smaller], measured[larger])
    assert made.k_of(1000) == measured[16]


def test_the_best_fixed_k_is_the_best_over_all_batches(fit: Fit) -> None:
    def cost(k: int) -> float:
        product = 1.0
        for batch in BATCHES:
            product *= expected_tpot(fit, batch, k) / expected_tpot(fit, batch, 0)
        return product

    assert cost(best_fixed_k(fit)) == min(cost(k) for k in range(6))


def test_vllm_takes_ranges_with_both_ends_from_1_without_gaps() -> None:
    ranges = as_vllm(schedule(), max_num_seqs=64)
    assert ranges == [[1, 3, 3], [4, 7, 1], [8, 64, 0]]
    # What vLLM demands (validate_and_normalize_dynamic_sd_schedule).
    assert ranges[0][0] == 1
    assert all(0 < start <= end for start, end, _ in ranges)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(ranges))
    assert as_vllm(schedule(), max_num_seqs=6) == [[1, 3, 3], [4, 6, 1]]
    assert as_vllm(schedule(), max_num_seqs=2) == [[1, 2, 3]]
