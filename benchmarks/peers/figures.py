"""What a race came to: one line a contestant, by pairs of answers to the same prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.fit.bootstrap import Floats, Indices, Interval, interval
from benchmarks.peers.contestants import OURS, eyrie_k
from benchmarks.results import RaceAnswer


@dataclass(frozen=True, slots=True)
class RaceFigures:
    """Of one contestant; seconds."""

    contestant: str
    answers: int
    tpot: float
    """Median."""
    first_token: float
    """TTFT, median."""
    tokens_a_step: float
    """After the first arrival, over all answers."""
    ratio: float
    """Our TPOT over this one's: median of pairs."""
    ratio_interval: Interval
    """95 %."""
    same_text: int
    """Answers with the tokens of our engine without drafts, or of the schedule where that did not run."""


def race_figures(rows: Sequence[RaceAnswer]) -> list[RaceFigures]:
    """In the order in which contestants appear; those of a session without our schedule are left out.

    Medians of a contestant are over the sessions that had it, and so are its ratios.
    """
    by_place: dict[tuple[str, int], dict[str, RaceAnswer]] = {}
    for row in rows:
        by_place.setdefault((row.session, row.prompt), {})[row.contestant] = row
    found: list[RaceFigures] = []
    for contestant in dict.fromkeys(_ordered(rows)):
        places = [of for of in by_place.values() if OURS in of and contestant in of]
        if places:
            found.append(_figures(contestant, places))
    return found


def _ordered(rows: Sequence[RaceAnswer]) -> list[str]:
    """Labels: our own, the schedule first, then the peers, each by name."""
    return sorted({row.contestant for row in rows}, key=lambda label: (label != OURS, not _is_ours(label), label))


def _is_ours(label: str) -> bool:
    return label.startswith(OURS.partition(",")[0])


def _figures(contestant: str, places: Sequence[dict[str, RaceAnswer]]) -> RaceFigures:
    own = [place[contestant] for place in places]
    ratios = np.array([place[OURS].answer.tpot / place[contestant].answer.tpot for place in places])

    def middle(index: Indices) -> Floats:
        return np.median(ratios[index], axis=-1)

    return RaceFigures(
        contestant,
        len(own),
        median(row.answer.tpot for row in own),
        median(row.answer.first_token for row in own),
        sum(row.step_tokens for row in own) / max(sum(row.steps for row in own), 1),
        float(np.median(ratios)),
        interval(middle, (len(ratios),)),
        sum(place[contestant].text == place.get(eyrie_k(0), place[OURS]).text for place in places),
    )
