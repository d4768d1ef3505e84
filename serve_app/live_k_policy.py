"""K that follows the acceptance of what is being served, on the costs that a schedule was measured with."""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log
from operator import mul

from replicas.scheduling.k_policy import DraftFeedback
from serve_app.k_schedule import KSchedule

CERTAIN = 1e-3
"""Odds are computed of rates that far from 0 and 1."""


@dataclass(frozen=True, slots=True)
class LiveKLimits:
    """How readily K moves."""

    margin: float = 0.05
    """By so much more goodput another K has to promise."""
    min_steps: int = 8
    """Decode steps from one decision to the next; so K moves at most once in so many."""
    memory_steps: float = 100.0
    """Decode steps after which an observation weighs 1/e. What is forgotten is replaced by the schedule's rates: so a K
    that was given up is tried again at last."""
    prior_weight: float = 24.0
    """Drafts that the schedule's rates count as."""


@dataclass(slots=True)
class LiveK:
    """Estimates acceptance by position, and takes the K with the most tokens a second at the batch's measured costs.

    K is one of those that were measured, and of those in `allowed`, for which there are programs.
    """

    schedule: KSchedule
    allowed: tuple[int, ...]
    limits: LiveKLimits = LiveKLimits()
    moves: int = field(default=0, init=False)
    """So far."""
    _k: int | None = field(default=None, init=False)
    _steps_since_decision: int = field(default=0, init=False)
    _reached: list[float] = field(default_factory=list[float], init=False)
    """Drafts at each position whose predecessors were accepted, less what is forgotten."""
    _accepted: list[float] = field(default_factory=list[float], init=False)

    def __post_init__(self) -> None:
        self._reached = [0.0] * len(self.schedule.acceptance_by_position)
        self._accepted = list(self._reached)

    def num_speculative_tokens(self, batch_size: int) -> int:
        """See KPolicy."""
        return self.schedule.k_of(batch_size) if self._k is None else self._k

    def observe(self, feedback: DraftFeedback) -> None:
        """See KPolicy."""
        if self._k is None:
            self._k = self.num_speculative_tokens(feedback.batch_size)
        self._learn(feedback)
        self._steps_since_decision += 1
        if self._steps_since_decision >= self.limits.min_steps:
            self._steps_since_decision = 0
            self._decide(feedback.batch_size)

    def acceptance_by_position(self) -> list[float]:
        """The estimate: share of the steps whose drafts would be accepted up to position 1, 2, ..."""
        weight = self.limits.prior_weight
        priors = _conditional(self.schedule.acceptance_by_position)
        seen = [reached / (reached + weight) for reached in self._reached]
        # Text that is easy at the first positions is easy at those that are not drafted now.
        shifts = [
            share * (_odds(accepted / reached) - _odds(prior)) if reached else 0.0
            for share, accepted, reached, prior in zip(seen, self._accepted, self._reached, priors, strict=True)
        ]
        shift = sum(shifts) / max(sum(seen), 1.0)
        rates = [
            (accepted + weight * _rate(_odds(prior) + shift)) / (reached + weight)
            for accepted, reached, prior in zip(self._accepted, self._reached, priors, strict=True)
        ]
        return list(accumulate(rates, mul))

    def _decide(self, batch_size: int) -> None:
        costs = step_costs(self.schedule, batch_size)
        lengths = [1.0, *(1.0 + total for total in accumulate(self.acceptance_by_position()))]
        goodput = {k: lengths[k] / ms for k, ms in costs.items() if k in self.allowed and k < len(lengths)}
        best = max(goodput, key=lambda k: (goodput[k], -k))
        now = 0.0 if self._k is None else goodput.get(self._k, 0.0)
        if best != self._k and goodput[best] > (1.0 + self.limits.margin) * now:
            self._k = best
            self.moves += 1

    def _learn(self, feedback: DraftFeedback) -> None:
        kept = exp(-1.0 / self.limits.memory_steps)
        before = feedback.batch_size
        for position in range(len(self._reached)):
            self._reached[position] *= kept
            self._accepted[position] *= kept
            if position < len(feedback.drafted_by_position):
                self._reached[position] += min(feedback.drafted_by_position[position], before)
                before = feedback.accepted_by_position[position]
                self._accepted[position] += before


def step_costs(schedule: KSchedule, batch_size: int) -> dict[int, float]:
    """Milliseconds by K for `batch_size`: between measured batches on a line, beyond them as at the nearest.

    Only K that were measured at both neighbours are known.
    """
    batches = sorted(schedule.step_ms)
    place = bisect_left(batches, batch_size)
    low, high = batches[max(place - 1, 0)], batches[min(place, len(batches) - 1)]
    share = 1.0 if high == low else min((batch_size - low) / (high - low), 1.0)
    below, above = schedule.step_ms[low], schedule.step_ms[high]
    return {k: (1 - share) * below[k] + share * above[k] for k in below if k in above}


def _conditional(rates: list[float]) -> list[float]:
    """Of each position, given that those before it were accepted."""
    return [rate / before if before else 0.0 for before, rate in zip([1.0, *rates[:-1]], rates, strict=True)]


def _odds(rate: float) -> float:
    rate = min(max(rate, CERTAIN), 1.0 - CERTAIN)
    return log(rate / (1.0 - rate))


def _rate(odds: float) -> float:
    return 1.0 / (1.0 + exp(-odds))
