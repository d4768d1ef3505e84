"""A router's ledger."""

from hypothesis import given
from hypothesis import strategies as st

from serve_app.unfinished_work import Unfinished, UnfinishedWork


def test_tokens_and_requests_until_they_end() -> None:
    work = UnfinishedWork(5)
    work.begin("a", "1", 10, 0)
    work.begin("a", "2", 20, 1)
    work.begin("b", "3", 5, 1)
    assert work.of("a", 1) == Unfinished(30, 2, 2)
    work.end("a", "1")
    assert work.of("a", 1) == Unfinished(20, 1, 2)
    assert work.of("b", 1) == Unfinished(5, 1, 1)
    assert work.of("c", 1) == Unfinished(0, 0, 0)


def test_the_peak_is_that_of_the_window() -> None:
    work = UnfinishedWork(5)
    for number in range(3):
        work.begin("a", str(number), 1, number)
    for number in range(3):
        work.end("a", str(number))
    assert work.of("a", 6).peak_requests == 3
    assert work.of("a", 7.1).peak_requests == 0


def test_replicas_that_have_gone_are_forgotten() -> None:
    work = UnfinishedWork(5)
    work.begin("a", "1", 10, 0)
    work.keep({"b"})
    assert work.of("a", 0) == Unfinished(0, 0, 0)
    work.end("a", "1")
    assert work.of("a", 0) == Unfinished(0, 0, 0)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 99))))
def test_when_all_have_ended_nothing_is_left(events: list[tuple[bool, str, int, int]]) -> None:
    work = UnfinishedWork(5)
    running: dict[tuple[str, str], int] = {}
    for is_begin, replica, number, tokens in events:
        key = replica, str(number)
        if is_begin:
            work.begin(*key, tokens, 0)
            running[key] = tokens
        elif key in running:
            work.end(*key)
            del running[key]
        for name in "ab":
            own = [tokens for (owner, _), tokens in running.items() if owner == name]
            found = work.of(name, 0)
            assert (found.tokens, found.requests) == (sum(own), len(own))
            assert found.peak_requests >= found.requests
