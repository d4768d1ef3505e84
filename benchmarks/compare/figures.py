"""What one drafter at one K amounts to: the figures of the second seed's table."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks.compare.near_ties import Difference
from benchmarks.compare.race import Lap, TimedAnswer
from benchmarks.metrics import median_ratio


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over prompts of what was measured at batch 1; times in seconds."""

    name: str
    k: int
    acceptance_by_position: list[float]
    """Share of the steps in which the draft at each position was accepted."""
    acceptance_rate: float
    """alpha: accepted over drafted."""
    mean_acceptance_length: float
    """Tokens a step, 1 + accepted / steps. It is the seed's bound 1 + alpha * gamma: the speed-up, if drafting cost
    nothing and verifying as much as a plain step."""
    draft_seconds: float
    """Of all drafts of a step."""
    verify_seconds: float
    """Of the rest of it: the target over 1 + K tokens, and the host."""
    plain_seconds: float
    """Of a step without drafts."""
    speedup: float
    """Of whole answers, prefill included: median over prompts, each against plain decoding next to it."""
    speedup_quartiles: tuple[float, float]
    decode_speedup: float
    """The same, of the time a token after the first."""
    differences: list[Difference]

    @property
    def draft_over_verify(self) -> float:
        """All drafts of a step over the verify that checks them."""
        return self.draft_seconds / self.verify_seconds

    @property
    def formula(self) -> float:
        """(1 + alpha * gamma) / (1 + draft cost / verify cost), the seed's: verifying is taken to cost a plain step."""
        return self.mean_acceptance_length / (1 + self.draft_over_verify)

    @property
    def step_over_plain(self) -> float:
        """What a step costs, in plain steps. Drafting pays where this is below the tokens that it gives."""
        return (self.draft_seconds + self.verify_seconds) / self.plain_seconds

    @property
    def matched(self) -> bool:
        """True if every answer is plain decoding's."""
        return not self.differences


def figures(lap: Lap, plain: Lap, differences: list[Difference]) -> Figures:
    """Of `lap`, against the answers of `plain` to the same prompts."""
    answers = lap.answers
    steps = sum(one.acceptance.steps for one in answers)
    accepted = sum(one.acceptance.accepted for one in answers)
    counts = [one.acceptance.accepted_by_position for one in answers]
    by_position = [sum(c[at] for c in counts if at < len(c)) / max(steps, 1) for at in range(lap.k)]
    ratios = [b.answer.seconds_per_token / a.answer.seconds_per_token for a, b in _pairs(answers, plain.answers)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return Figures(
        name=lap.name or "plain",
        k=lap.k,
        acceptance_by_position=by_position,
        acceptance_rate=accepted / max(sum(one.acceptance.drafted for one in answers), 1),
        mean_acceptance_length=1 + accepted / max(steps, 1),
        draft_seconds=_a_step(answers, [one.draft_seconds for one in answers]),
        verify_seconds=_a_step(answers, [one.step_seconds - one.draft_seconds for one in answers]),
        plain_seconds=_a_step(plain.answers, [one.step_seconds for one in plain.answers]),
        speedup=median(ratios),
        speedup_quartiles=(low, high),
        decode_speedup=median_ratio(_tpots(plain.answers), _tpots(answers)),
        differences=differences,
    )


def _pairs(ours: Sequence[TimedAnswer], plain: Sequence[TimedAnswer]) -> list[tuple[TimedAnswer, TimedAnswer]]:
    return list(zip(ours, plain, strict=True))


def _tpots(answers: Sequence[TimedAnswer]) -> list[float]:
    return [one.answer.tpot for one in answers]


def _a_step(answers: Sequence[TimedAnswer], seconds: Sequence[float]) -> float:
    """Median over answers of the mean over an answer's steps."""
    return median(spent / max(one.acceptance.steps, 1) for one, spent in zip(answers, seconds, strict=True))
