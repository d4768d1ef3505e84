"""Definitions of the figures, on traces made by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.metrics import (
    Answer,
    AnswerTrace,
    Chunk,
    Throughput,
    acceptance_by_position,
    acceptance_rate,
    median_ratio,
    pooled,
)
from replicas.request import Acceptance

# A role alone, then half a character, then text; a step of three tokens, one of one, and the stop token alone.
TRACE = AnswerTrace(
    (
        Chunk(0.2, 0, False),
        Chunk(0.5, 1, False),
        Chunk(0.6, 2, True),
        Chunk(1.2, 3, True),
        Chunk(1.3, 1, True),
        Chunk(1.5, 1, False),
    )
)


def test_ttft_is_to_the_first_content_and_a_role_is_none() -> None:
    assert TRACE.answer.first_token == 0.6


def test_the_end_is_the_last_chunk_and_the_count_is_all_tokens() -> None:
    assert TRACE.answer == Answer(first_token=0.6, end_to_end=1.5, tokens=8)


def test_an_answer_without_any_text_begins_with_its_first_token() -> None:
    trace = AnswerTrace((Chunk(0.1, 0, False), Chunk(0.3, 1, False)))
    assert trace.answer == Answer(0.3, 0.3, 1)


def test_tpot_leaves_out_the_first_token() -> None:
    answer = Answer(first_token=0.5, end_to_end=2.5, tokens=11)
    assert answer.tpot == 0.2
    assert answer.seconds_per_token == 2.5 / 11


def test_chunk_gaps_are_pauses_and_itl_shares_them_out() -> None:
    assert TRACE.chunk_gaps == pytest.approx([0.1, 0.6, 0.1, 0.2])
    assert TRACE.inter_token_latencies == pytest.approx([0.05, 0.05, 0.2, 0.2, 0.2, 0.1, 0.2])
    assert sum(TRACE.inter_token_latencies) == pytest.approx(sum(TRACE.chunk_gaps))


def test_acceptance_counts_the_accepted_prefix() -> None:
    # Steps of K=3: 3, 0, 1 and 2 accepted; one step near the end of the context drafted a single token, in vain.
    acceptance = Acceptance()
    for drafted, accepted in ((3, 3), (3, 0), (3, 1), (3, 2), (1, 0)):
        acceptance = acceptance.after(drafted, accepted)
    assert acceptance_rate(acceptance) == 6 / 13
    assert acceptance.mean_acceptance_length == 1 + 6 / 5
    assert acceptance_by_position(acceptance, 3) == (3 / 5, 2 / 5, 1 / 5)
    assert acceptance_by_position(acceptance, 5) == (3 / 5, 2 / 5, 1 / 5, 0, 0)


def test_acceptance_is_pooled_by_counts_not_by_rates() -> None:
    short = Acceptance(steps=6, drafted=12, accepted=4, accepted_by_position=(3, 1))
    long = Acceptance(steps=4, drafted=16, accepted=9, accepted_by_position=(4, 3, 1, 1))
    assert pooled([short, long]) == Acceptance(10, 28, 13, (7, 4, 1, 1))
    assert pooled([]) == Acceptance()
    assert acceptance_rate(pooled([])) == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_rates_by_position_never_increase_and_add_up_to_the_length(accepted: list[int]) -> None:
    acceptance = Acceptance()
    for count in accepted:
        acceptance = acceptance.after(5, count)
    rates = acceptance_by_position(acceptance, 5)
    assert list(rates) == sorted(rates, reverse=True)
    assert 1 + sum(rates) == pytest.approx(acceptance.mean_acceptance_length)


def test_throughput_on_a_trace_made_by_hand() -> None:
    # Two and a half seconds are three windows of 0.83 s.
    throughput = Throughput.of([(0.1, 5), (0.8, 5), (1.0, 2), (2.4, 3), (2.5, 1)], 2.5)
    assert throughput.average == 16 / 2.5
    assert throughput.peak == pytest.approx(10 / (2.5 / 3))


@given(
    st.floats(0.01, 20).flatmap(
        lambda seconds: st.tuples(
            st.just(seconds), st.lists(st.tuples(st.floats(0, seconds), st.integers(0, 9)), min_size=1)
        )
    )
)
def test_peak_throughput_is_never_below_the_average(run: tuple[float, list[tuple[float, int]]]) -> None:
    seconds, events = run
    throughput = Throughput.of(events, seconds)
    assert throughput.peak >= throughput.average * (1 - 1e-9)


def test_median_ratio_pairs_neighbours_so_that_drift_cancels() -> None:
    # The machine slows down threefold half-way; ours takes half of theirs throughout.
    ours = [1.0, 1.0, 3.0, 3.0, 3.0]
    theirs = [2.0, 2.0, 6.0, 6.0, 6.0]
    assert median_ratio(ours, theirs) == 0.5
