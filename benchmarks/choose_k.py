"""From a fit to a schedule: the best K of each batch, and no change of K that is not worth it."""

from itertools import pairwise
from math import log
from statistics import mean

from benchmarks.fit.fit import Fit
from benchmarks.results import Cell
from serve_app.k_schedule import KBucket, KSchedule

MARGIN = 0.03
"""A larger batch keeps the K of the one before it, unless another is better by more than this."""


def expected_tpot(fit: Fit, batch: int, k: int) -> float:
    """Seconds an output token in decode steps: measured T over tokens a step by pooled acceptance; mean of contexts."""
    seconds = [fit.costs[Cell(k, batch, context)].seconds for context in fit.contexts]
    return mean(seconds) / fit.acceptance.mean_length(k)


def surely_pays(fit: Fit, batch: int, k: int) -> bool:
    """True for 0, and where the whole interval of the measured speed-up lies above 1, in every context."""
    return k == 0 or all(fit.speedups[Cell(k, batch, context)].interval.low > 1 for context in fit.contexts)


def choose_buckets(fit: Fit, margin: float = MARGIN) -> list[KBucket]:
    """Buckets over the measured batches; between two of them the smaller K holds, beyond the last one its own."""
    chosen: dict[int, int] = {}
    before: int | None = None
    for batch in fit.batches:
        candidates = [k for k in _measured_ks(fit, batch) if surely_pays(fit, batch, k)]
        best = min(candidates, key=lambda k, batch=batch: (expected_tpot(fit, batch, k), k))
        if before in candidates and expected_tpot(fit, batch, before) <= (1 + margin) * expected_tpot(fit, batch, best):
            best = before
        chosen[batch] = before = best
    buckets = [KBucket(from_batch=1, k=chosen[fit.batches[0]])]
    for smaller, larger in pairwise(fit.batches):
        k = chosen[larger]
        if k != buckets[-1].k:
            buckets.append(KBucket(from_batch=smaller + 1 if k < buckets[-1].k else larger, k=k))
    return buckets


def best_fixed_k(fit: Fit) -> int:
    """The single K whose TPOT over that of K = 0 is smallest in the geometric mean of all batches."""

    def cost(k: int) -> tuple[float, int]:
        return mean(log(expected_tpot(fit, batch, k) / expected_tpot(fit, batch, 0)) for batch in fit.batches), k

    everywhere = [k for k in fit.ks if all(k in _measured_ks(fit, batch) for batch in fit.batches)]
    return min(everywhere, key=cost)


def make_schedule(fit: Fit, provenance: dict[str, str], margin: float = MARGIN) -> KSchedule:
    """The schedule with what serving needs beside it."""
    session = fit.sessions[-1]
    return KSchedule(
        model=session.model,
        engine=session.engine,
        device=session.device,
        method=session.method or "none",
        buckets=choose_buckets(fit, margin),
        best_fixed_k=best_fixed_k(fit),
        acceptance_by_position=[round(rate, 4) for rate in fit.acceptance.rates],
        step_ms={
            batch: {k: round(1e3 * _seconds(fit, batch, k), 3) for k in _measured_ks(fit, batch)}
            for batch in fit.batches
        },
        provenance=provenance,
    )


def as_vllm(schedule: KSchedule, max_num_seqs: int) -> list[list[int]]:
    """VLLM's `num_speculative_tokens_per_batch_size`: [first batch, last batch, K], both ends included.

    As vllm/v1/spec_decode/dynamic/utils.py reads it: ascending ranges, the first from 1.
    """
    starts = [bucket.from_batch for bucket in schedule.buckets if bucket.from_batch <= max_num_seqs]
    ends = [*(start - 1 for start in starts[1:]), max_num_seqs]
    return [[start, end, schedule.k_of(start)] for start, end in zip(starts, ends, strict=True)]


def _measured_ks(fit: Fit, batch: int) -> list[int]:
    return [k for k in fit.ks if all(Cell(k, batch, context) in fit.costs for context in fit.contexts)]


def _seconds(fit: Fit, batch: int, k: int) -> float:
    return mean(fit.costs[Cell(k, batch, context)].seconds for context in fit.contexts)
