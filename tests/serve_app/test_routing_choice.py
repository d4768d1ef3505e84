"""Which replica a request goes to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.request import SamplingParams
from serve_app.generation import ChatMessage, GenerationJob, Prompt
from serve_app.prefix_memory import CHUNK_BYTES, MAX_OWNERS, PrefixMemory, prefix_ids, prompt_bytes
from serve_app.routing_choice import EXPECTED_OUTPUT_TOKENS, ReplicaPressure, expected_tokens, ranked

A, B, C = "a", "b", "c"
IDLE = ReplicaPressure()


def job(prompt: Prompt, choices: int = 1, **sampling: int) -> GenerationJob:
    return GenerationJob("r", prompt, SamplingParams(**sampling), choices)  # pyright: ignore[reportArgumentType]


def test_the_least_loaded_comes_first_without_a_match() -> None:
    assert ranked({A: ReplicaPressure(500), B: ReplicaPressure(100), C: ReplicaPressure(300)}, {}, 1000) == [B, C, A]


def test_the_longest_match_comes_first_up_to_the_imbalance() -> None:
    pressures = {A: ReplicaPressure(1000), B: IDLE, C: ReplicaPressure(10)}
    assert ranked(pressures, {A: 5, C: 2}, 1000) == [A, B, C]
    assert ranked(pressures, {A: 5, C: 2}, 999) == [C, B, A]
    assert ranked(pressures, {A: 5}, 999) == [B, C, A]


def test_kv_use_makes_a_replica_busier() -> None:
    assert ranked({A: ReplicaPressure(100, kv_use=0.9), B: ReplicaPressure(300, kv_use=0.1)}, {}, 0) == [B, A]
    assert ReplicaPressure(100, kv_use=1.0).tokens == pytest.approx(2000)


def test_what_others_sent_counts_and_what_was_sent_from_here_counts_once() -> None:
    assert ReplicaPressure(100, own_requests=2, told_requests=2).tokens == 100
    assert ReplicaPressure(100, own_requests=2, told_requests=3).tokens == 100 + EXPECTED_OUTPUT_TOKENS
    assert ReplicaPressure(100, own_requests=2, told_requests=0).tokens == 100


def test_work_is_the_output_that_may_come_and_a_little_of_the_prompt() -> None:
    assert expected_tokens(job("x", max_tokens=10), 0) == 10
    assert expected_tokens(job("x", choices=3, max_tokens=10), 0) == 30
    assert expected_tokens(job("x"), 3200) == EXPECTED_OUTPUT_TOKENS + 100


@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.builds(ReplicaPressure, st.floats(0, 1e6), st.integers(0, 9), st.floats(0, 99))
    ),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9)),
    st.floats(0, 1e6),
)
def test_every_replica_is_ranked_once_and_the_first_is_never_too_busy(
    pressures: dict[str, ReplicaPressure], matches: dict[str, int], imbalance: float
) -> None:
    matches = {name: count for name, count in matches.items() if name in pressures}
    order = ranked(pressures, matches, imbalance)
    assert sorted(order) == sorted(pressures)
    if order:
        least = min(pressure.tokens for pressure in pressures.values())
        assert pressures[order[0]].tokens <= least + imbalance


SYSTEM = ChatMessage("system", "You are a careful assistant. " * 20)


def ids(*messages: ChatMessage) -> list[bytes]:
    return prefix_ids(prompt_bytes(job(messages)))


def test_a_conversation_that_goes_on_begins_as_before() -> None:
    question, answer = ChatMessage("user", "q" * 300), ChatMessage("assistant", "a" * 300)
    first, second = ids(SYSTEM, question), ids(SYSTEM, question, answer, ChatMessage("user", "and then?"))
    assert len(first) >= 6
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_ids_cover_whole_chunks_and_all_before_them() -> None:
    assert prefix_ids(b"x" * (CHUNK_BYTES - 1)) == []
    assert len(prefix_ids(b"x" * 3 * CHUNK_BYTES)) == 3
    first, second = prefix_ids(b"x" * CHUNK_BYTES + b"y" * CHUNK_BYTES), prefix_ids(b"z" + b"x" * 2 * CHUNK_BYTES)
    assert not set(first) & set(second)
    assert len(prefix_ids(b"x" * 10**6)) == 256


def test_token_ids_and_texts_have_prefixes_too() -> None:
    assert prompt_bytes(job((1, 2, 3)))[:16] == prompt_bytes(job((1, 2)))
    assert prompt_bytes(job("text \ud800")) == b"text \xed\xa0\x80"


def test_memory_finds_the_longest_run_of_each_replica_that_still_is_there() -> None:
    memory = PrefixMemory(100)
    memory.remember([b"1", b"2", b"3"], A)
    memory.remember([b"1", b"2"], B)
    memory.remember([b"1", b"x"], C)
    assert memory.matches([b"1", b"2", b"3", b"4"], {A, B, C}) == {A: 3, B: 2, C: 1}
    assert memory.matches([b"1", b"2", b"3"], {B}) == {B: 2}
    assert memory.matches([b"0", b"1"], {A, B, C}) == {}


def test_memory_is_bounded_and_keeps_beginnings_longest() -> None:
    memory = PrefixMemory(3)
    memory.remember([b"1", b"2", b"3"], A)
    memory.remember([b"9"], A)
    assert len(memory) == 3
    assert memory.matches([b"1", b"2", b"3"], {A}) == {A: 2}
    for replica in range(10):
        memory.remember([b"1"], str(replica))
    assert len(memory.matches([b"1"], {str(replica) for replica in range(10)})) == MAX_OWNERS
