"""Figures and words, from answers made by hand."""

from dataclasses import replace

import pytest

from benchmarks.compare.figures import Figures, figures
from benchmarks.compare.near_ties import Difference
from benchmarks.compare.race import Lap, TimedAnswer
from benchmarks.compare.report import advice, table
from benchmarks.metrics import Answer
from replicas.request import Acceptance

TEXT = tuple(range(13))


def answered(first: float, steps: float, drafts: float, acceptance: Acceptance) -> TimedAnswer:
    return TimedAnswer(Answer(first, first + steps, len(TEXT)), TEXT, acceptance, steps, drafts)


PLAIN = Lap(None, 0, [answered(0.1, 1.2, 0.0, Acceptance(12))] * 2)
FOUND = figures(
    Lap(
        "small",
        2,
        [answered(0.1, 0.9, 0.3, Acceptance(6, 12, 6, (4, 2))), answered(0.1, 1.2, 0.4, Acceptance(8, 16, 4, (4, 0)))],
    ),
    PLAIN,
    [],
)


def test_figures_are_those_of_the_glossary() -> None:
    assert FOUND.acceptance_by_position == [8 / 14, 2 / 14]
    assert FOUND.acceptance_rate == 10 / 28
    assert FOUND.mean_acceptance_length == 1 + 10 / 14
    assert FOUND.draft_seconds == pytest.approx(0.05)
    assert FOUND.verify_seconds == pytest.approx(0.1)
    assert FOUND.plain_seconds == pytest.approx(0.1)
    assert FOUND.draft_over_verify == pytest.approx(0.5)
    assert FOUND.formula == pytest.approx((1 + 10 / 14) / 1.5)
    assert FOUND.step_over_plain == pytest.approx(1.5)
    assert FOUND.speedup == pytest.approx((1.3 / 1.0 + 1.3 / 1.3) / 2)
    assert FOUND.decode_speedup == pytest.approx((1.2 / 0.9 + 1.0) / 2)
    assert FOUND.matched


def test_a_row_says_what_matched() -> None:
    rows = table([FOUND]).splitlines()
    assert rows[2].startswith("| small | 2 | 0.57 0.14 | 0.36 | 1.71 | 50.00 | 100.00 | 0.50 | 1.14 | 1.15 |")
    assert rows[2].endswith("| true |")
    tie = replace(FOUND, differences=[Difference(0, 5, 0.0004), Difference(3, 1, 0.0021)])
    assert table([tie]).endswith("| near-ties: 2, logit gap up to 0.0021 |")
    wrong = replace(FOUND, differences=[Difference(0, 5, 0.0004), Difference(1, 2, 3.5)])
    assert table([wrong]).endswith("| different: 2, logit gap up to 3.5000 |")
    assert not tie.matched


def mode(name: str, k: int, speedup: float) -> Figures:
    return replace(FOUND, name=name, k=k, speedup=speedup)


def test_the_fastest_mode_is_recommended_and_every_drafter_explained() -> None:
    text = advice([mode("small", 1, 0.9), mode("small", 2, 0.8), mode("eagle3", 3, 1.6), mode("eagle3", 8, 0.95)])
    lines = text.splitlines()
    assert lines[0] == (
        "Use eagle3 with K = 3: answers come 1.60 times as fast as without drafts, the most of the 4 modes measured."
    )
    assert lines[2] == (
        "* A small model with the same tokenizer at hand: not small, since a step gives 1.71 tokens in the time of "
        "1.50 plain steps."
    )
    assert lines[3] == (
        "  small loses at K = 1 (0.90 times): a draft costs 50% of a verify, the 1 of a step 50%, and 36% of them are "
        "accepted, so a step costs 1.50 plain ones and gives 1.71 tokens."
    )
    assert lines[4].startswith("* A target as it is, and a head trained for it: eagle3 with K = 3, 1.60 times, since")
    assert lines[5].startswith("  eagle3 loses at K = 8 (0.95 times): a draft costs 6% of a verify")
    assert len(lines) == 6


def test_where_nothing_pays_no_drafter_is_recommended() -> None:
    assert advice([mode("ngram", 1, 0.98), mode("ngram", 2, 0.9)]).startswith(
        "Use no drafter: the best of the 2 modes measured, ngram with K = 1, gives 0.98 times the speed of "
        "plain decoding."
    )
