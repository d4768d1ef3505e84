"""Where a text differs from plain decoding's: by how little the target preferred its own token."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.compare.race import Race
from replicas.engine import Engine
from replicas.request import MAX_LOGPROBS, GenerationRequest, SamplingParams

NEAR_TIE = 0.01
"""Logits. The order of additions moves them by less than 0.001; between two random tokens lie several whole ones."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token of an answer that plain decoding chose otherwise."""

    prompt: int
    token: int
    """Index in the answer."""
    gap: float
    """Between the two tokens' logits; where the other is not among the best 20, at least this."""

    @property
    def is_near_tie(self) -> bool:
        """True if the order of additions alone can have swapped the two."""
        return self.gap < NEAR_TIE


def differences(race: Race, answers: Sequence[tuple[int, ...]]) -> list[Difference]:
    """Of `answers` from those of plain decoding."""
    found: list[Difference] = []
    for index, (prompt, plain, other) in enumerate(zip(race.prompts, race.plain.answers, answers, strict=True)):
        if other == plain.token_ids:
            continue
        pairs = enumerate(zip(plain.token_ids, other, strict=False))
        at = next((place for place, (one, two) in pairs if one != two), min(len(plain.token_ids), len(other)) - 1)
        text = (*prompt, *plain.token_ids[:at])
        found.append(Difference(index, at, logit_gap(race.plain_engine.engine, text, plain.token_ids[at], other[at])))
    return found


def logit_gap(engine: Engine, text: tuple[int, ...], first: int, second: int) -> float:
    """By how much the logits of two tokens differ after `text`."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=MAX_LOGPROBS)
    engine.add_request(GenerationRequest("gap", text, sampling))
    top: dict[int, float] = {}
    while engine.has_work:
        for output in engine.step():
            assert output.logprobs is not None
            top = dict(output.logprobs[0].top)
    least = min(top.values())
    return abs(top.get(first, least) - top.get(second, least))
