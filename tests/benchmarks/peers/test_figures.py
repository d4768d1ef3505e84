"""Ratios are of pairs: the same prompt in the same session."""

import pytest

from benchmarks.peers.contestants import OURS as SCHEDULE
from benchmarks.peers.contestants import eyrie_k
from benchmarks.peers.figures import race_figures
from tests.benchmarks.peers.made_rows import OTHER, OURS, PLAIN, SLOW, row


def test_the_labels_are_those_of_the_contestants() -> None:
    assert (SCHEDULE, eyrie_k(0)) == (OURS, PLAIN)


def test_a_ratio_is_the_median_of_pairs_and_not_of_medians() -> None:
    # The machine was four times slower from the third prompt on: a ratio of medians would say 20 / 40.
    ours, theirs = [10, 20, 40, 80, 10], [20, 40, 160, 320, 40]
    rows = [row(OURS, at, tpot) for at, tpot in enumerate(ours)]
    rows += [row(SLOW, at, tpot) for at, tpot in enumerate(theirs)]
    figures = {one.contestant: one for one in race_figures(rows)}
    assert list(figures) == [OURS, SLOW]
    assert figures[SLOW].ratio == pytest.approx(0.25)
    assert figures[SLOW].tpot == pytest.approx(0.040)
    assert figures[SLOW].ratio_interval.low == pytest.approx(0.25)
    assert figures[SLOW].ratio_interval.high == pytest.approx(0.5)
    assert figures[OURS].ratio == 1
    assert figures[OURS].first_token == pytest.approx(0.1)


def test_tokens_a_step_are_over_all_answers() -> None:
    rows = [row(OURS, 0, 10, steps=5), row(OURS, 1, 10, steps=10)]
    assert race_figures(rows)[0].tokens_a_step == pytest.approx(20 / 15)


def test_texts_are_compared_with_plain_decoding_where_it_ran() -> None:
    rows = [row(OURS, 0, 10, "a"), row(PLAIN, 0, 10, "b"), row(SLOW, 0, 10, "b")]
    rows += [row(OURS, 1, 10, "a"), row(SLOW, 1, 10, "b")]
    assert {one.contestant: one.same_text for one in race_figures(rows)} == {OURS: 1, PLAIN: 1, SLOW: 1}


def test_pairs_are_within_a_session() -> None:
    rows = [row(OURS, 0, 10, of="s1"), row(SLOW, 0, 20, of="s1"), row(OURS, 0, 30, of="s2"), row(OTHER, 0, 40, of="s2")]
    rows += [row(SLOW, 0, 99, of="without ours")]
    figures = {one.contestant: one for one in race_figures(rows)}
    assert figures[SLOW].ratio == pytest.approx(0.5)
    assert figures[OTHER].ratio == pytest.approx(0.75)
    assert (figures[SLOW].answers, figures[OURS].answers) == (1, 2)
