"""The live policy, on a simulated server whose workload changes."""

import random
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

import pytest

from replicas.scheduling.k_policy import DraftFeedback, KPolicy
from serve_app.k_policy import FixedK, ScheduledK
from serve_app.k_schedule import KSchedule
from serve_app.live_k_policy import LiveK, LiveKLimits, step_costs
from tests.serve_app.k_schedules import schedule

KS = range(6)
MEASURED = (0.47, 0.41, 0.45, 0.4, 0.4)
"""Chance of each draft, given those before it, in the workload that the schedule was measured with."""


def rates(chances: tuple[float, ...]) -> list[float]:
    return list(accumulate(chances, mul))


def demo_schedule() -> KSchedule:
    """Costs as of a small model on a CPU: verifying is cheap for one sequence, and dear in a batch."""
    cost = {
        1: {k: 17.0 + 1.3 * k for k in KS},
        4: {k: 24.0 + 5.0 * k for k in KS},
        8: {k: 30.0 + 11.0 * k for k in KS},
    }
    buckets = [{"from_batch": 1, "k": 2}, {"from_batch": 4, "k": 1}, {"from_batch": 8, "k": 0}]
    return schedule(step_ms=cost, buckets=buckets, acceptance_by_position=rates(MEASURED))


@dataclass(frozen=True)
class Phase:
    """A workload for a while."""

    batch: int
    chances: tuple[float, ...]
    steps: int = 1500

    def goodput(self, costs: KSchedule, k: int) -> float:
        """Tokens a millisecond at a fixed K."""
        return self.batch * (1 + sum(rates(self.chances)[:k])) / step_costs(costs, self.batch)[k]

    def best(self, costs: KSchedule) -> float:
        return max(self.goodput(costs, k) for k in KS)


ALIKE = MEASURED
EASY = (0.9, 0.88, 0.88, 0.85, 0.85)
HARD = (0.06, 0.05, 0.05, 0.05, 0.05)
MIXED = (0.6, 0.45, 0.4, 0.3, 0.3)
DAY = [
    Phase(1, ALIKE), Phase(1, EASY), Phase(4, EASY), Phase(8, HARD), Phase(8, EASY), Phase(2, MIXED), Phase(1, HARD),
    Phase(1, ALIKE), Phase(4, MIXED), Phase(8, ALIKE),
]  # fmt: skip


@dataclass
class Served:
    """What a policy made of some phases."""

    share_of_best: float
    ks: list[int]
    """Of every step."""

    @property
    def moves(self) -> list[int]:
        """Steps at which K changed."""
        return [step for step, (before, after) in enumerate(pairwise(self.ks), 1) if before != after]


def serve(policy: KPolicy, phases: list[Phase], costs: KSchedule, seed: int = 0) -> Served:
    """Run the phases; the best would have needed `ideal` milliseconds for the same tokens."""
    chance = random.Random(seed)
    spent = ideal = 0.0
    ks: list[int] = []
    for phase in phases:
        table = step_costs(costs, phase.batch)
        for _ in range(phase.steps):
            k = policy.num_speculative_tokens(phase.batch)
            # The drafts at hand were proposed in the step before.
            drafts = min(k, ks[-1] if ks else k)
            accepted = [
                next((i for i in range(drafts) if chance.random() >= phase.chances[i]), drafts)
                for _ in range(phase.batch)
            ]
            positions = range(drafts)
            policy.observe(
                DraftFeedback(
                    phase.batch,
                    tuple(phase.batch for _ in positions),
                    tuple(sum(count > position for count in accepted) for position in positions),
                )
            )
            spent += table[k]
            ideal += (phase.batch + sum(accepted)) / phase.best(costs)
            ks.append(k)
    return Served(ideal / spent, ks)


def expected_share(k: int, phases: list[Phase], costs: KSchedule) -> float:
    """share_of_best of a K that never changes."""
    spent = [phase.steps * step_costs(costs, phase.batch)[k] for phase in phases]
    return sum(ms * phase.goodput(costs, k) / phase.best(costs) for ms, phase in zip(spent, phases, strict=True)) / sum(
        spent
    )


@pytest.mark.parametrize("seed", range(2))
def test_a_day_of_changing_work_gets_nearly_the_best_k_s_goodput_without_flapping(seed: int) -> None:
    costs = demo_schedule()
    served = serve(LiveK(costs, tuple(KS)), DAY, costs, seed)
    assert served.share_of_best >= 0.95
    # Nothing that stands still does as well on this day.
    assert max(expected_share(k, DAY, costs) for k in KS) < served.share_of_best - 0.02
    assert len(served.moves) <= 3 * len(DAY)
    assert min(after - before for before, after in pairwise(served.moves)) >= LiveKLimits().min_steps


def test_a_schedule_by_batch_alone_does_not_see_the_work_change() -> None:
    costs = demo_schedule()
    assert serve(ScheduledK(costs), DAY, costs).share_of_best < 0.9
    assert serve(FixedK(2), [Phase(1, ALIKE)], costs).share_of_best == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("phase", [Phase(1, ALIKE), Phase(1, EASY), Phase(1, HARD), Phase(8, HARD), Phase(4, MIXED)])
def test_steady_work_settles(phase: Phase) -> None:
    costs = demo_schedule()
    served = serve(LiveK(costs, tuple(KS)), [phase, phase], costs)
    later = [step for step in served.moves if step > phase.steps]
    assert len(later) <= 8, "what is forgotten is tried again: there and back in not less than 375 steps"
    assert served.share_of_best >= 0.95


def test_it_never_leaves_what_was_measured_and_compiled() -> None:
    costs = schedule(
        step_ms={1: {0: 10.0, 1: 10.2, 3: 10.4, 5: 10.6}},
        acceptance_by_position=rates(EASY),
        buckets=[{"from_batch": 1, "k": 1}],
    )
    policy = LiveK(costs, allowed=(0, 1, 3, 4))
    served = [policy.num_speculative_tokens(1)]
    for _ in range(200):
        k = served[-1]
        policy.observe(DraftFeedback(1, (1,) * k, (1,) * k))
        served.append(policy.num_speculative_tokens(1))
    assert set(served) == {1, 3}
    assert policy.moves == 1


def test_the_margin_keeps_k_where_little_is_to_be_gained() -> None:
    costs = schedule(
        step_ms={1: {0: 10.0, 1: 14.5, 2: 18.5}},
        acceptance_by_position=[0.5, 0.3],
        buckets=[{"from_batch": 1, "k": 1}],
    )
    # K = 1 is worth 1.5 / 14.5, K = 2 1.8 / 18.5, K = 0 1 / 10: all within 7 %.
    policy = LiveK(costs, (0, 1, 2), LiveKLimits(margin=0.1))
    served = serve(policy, [Phase(1, (0.5, 0.6, 0, 0, 0))], schedule(step_ms={1: dict.fromkeys(KS, 10.0)}))
    assert set(served.ks) == {1}


def test_asking_changes_nothing() -> None:
    policy = LiveK(demo_schedule(), tuple(KS))
    policy.observe(DraftFeedback(1, (1, 1), (0, 0)))
    before = policy.acceptance_by_position()
    assert [policy.num_speculative_tokens(batch) for batch in (1, 8, 4, 1)] == [2] * 4
    assert policy.acceptance_by_position() == before


def test_the_estimate_starts_at_the_schedule_follows_what_is_seen_and_forgets() -> None:
    policy = LiveK(demo_schedule(), tuple(KS))
    assert policy.acceptance_by_position() == pytest.approx(rates(MEASURED))
    for _ in range(2000):
        policy.observe(DraftFeedback(10, (10, 10), (9, 8)))
    learned = policy.acceptance_by_position()
    assert learned[:2] == pytest.approx([0.9, 0.8], abs=0.02)
    # Positions that nobody drafted follow those that were.
    assert learned[2] / learned[1] > 0.7
    for _ in range(3000):
        policy.observe(DraftFeedback(10, (), ()))
    assert policy.acceptance_by_position() == pytest.approx(rates(MEASURED), abs=0.01)


def test_costs_between_measured_batches_lie_on_a_line() -> None:
    costs = demo_schedule()
    assert step_costs(costs, 1)[0] == 17.0
    assert step_costs(costs, 2)[1] == pytest.approx((2 * 18.3 + 29.0) / 3)
    assert step_costs(costs, 30) == costs.step_ms[8]
    gaps = schedule(step_ms={1: {0: 1.0, 1: 1.0, 2: 1.0}, 4: {0: 1.0, 2: 1.0}})
    assert set(step_costs(gaps, 3)) == {0, 2}
