"""The scheduler with a symbolic runner: no torch, and every token depends on the KV that the plan's blocks hold."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.scheduling.k_policy import DraftFeedback
from replicas.scheduling.step_plan import SequencePlan, StepPlan
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.scheduler_bench import SchedulerBench, parts_of, prompt_of, ran
from tests.reference.symbolic_runner import expected_output


def admissions(plan: StepPlan) -> list[str]:
    """Requests whose prompt runs, in the order of the plan."""
    return [part.request_id for batch in plan.batches if batch.is_prefill for part in batch.sequences]


def test_prompts_are_prefilled_in_chunks_within_the_budget() -> None:
    bench = SchedulerBench(budget=16)
    for request_id, length in (("a", 20), ("b", 10), ("c", 30)):
        bench.add(request_id, prompt_of(length), max_tokens=4)
    # Not more than 16 prompt tokens a step, first come first served; decoding goes on beside it.
    assert ran(bench.step()) == {"a": 16}
    assert ran(bench.step()) == {"a": 4, "b": 10, "c": 2}
    assert ran(bench.step()) == {"a": 1, "b": 1, "c": 16}
    assert ran(bench.step()) == {"a": 1, "b": 1, "c": 12}
    bench.run()
    for request_id, length in (("a", 20), ("b", 10), ("c", 30)):
        assert bench.tokens[request_id] == expected_output(prompt_of(length), 4, 64, frozenset())[0]
        assert bench.finish_reason(request_id) == "length"
    assert bench.owned == 0


def test_a_chunk_tells_the_prompt_token_that_follows_it() -> None:
    bench = SchedulerBench(budget=16)
    prompt = prompt_of(40)
    bench.add("a", prompt, max_tokens=2)
    plans = [bench.step() for _ in range(3)]
    assert [parts_of(plan)["a"].next_prompt_token for plan in plans] == [prompt[16], prompt[32], None]
    assert [parts_of(plan)["a"].start for plan in plans] == [0, 16, 32]
    assert bench.tokens["a"] == expected_output(prompt, 1, 64, frozenset())[0]


def test_a_sequence_s_time_in_the_queue_is_told() -> None:
    bench = SchedulerBench(max_num_seqs=1)
    bench.add("a", prompt_of(4), max_tokens=3)
    bench.add("b", prompt_of(4, 1), max_tokens=1)
    begin = time.perf_counter()
    while "b" not in bench.last:
        bench.step()
        time.sleep(0.01)
    first, second = bench.last["a"].queue_seconds, bench.last["b"].queue_seconds
    assert first is not None
    assert second is not None
    # b runs after three steps of a.
    assert 0 <= first < second
    assert 0.03 <= second <= time.perf_counter() - begin + 0.1


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 18, 33, 63])
def test_prompts_of_every_length_around_the_chunk(length: int) -> None:
    bench = SchedulerBench(FixedK(3), budget=16)
    bench.add("a", prompt_of(length), max_tokens=9)
    bench.run()
    assert bench.tokens["a"] == expected_output(prompt_of(length), 9, 64, frozenset())[0]


def test_admission_is_first_come_first_served_up_to_max_num_seqs() -> None:
    bench = SchedulerBench(max_num_seqs=2)
    for index in range(4):
        bench.add(str(index), prompt_of(4, index), max_tokens=2 + index)
    assert list(ran(bench.step())) == ["0", "1"]
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 2)
    assert list(ran(bench.step())) == ["0", "1"]
    assert list(ran(bench.step())) == ["1", "2"]
    bench.run()
    assert [bench.last[str(index)].num_output_tokens for index in range(4)] == [2, 3, 4, 5]


def test_a_long_prompt_in_front_is_not_overtaken_for_want_of_blocks() -> None:
    bench = SchedulerBench(num_blocks=17, max_k=0)
    bench.add("first", prompt_of(20), max_tokens=8)
    bench.add("long", prompt_of(60), max_tokens=2)
    bench.add("short", prompt_of(2), max_tokens=2)
    order: list[str] = []
    while bench.scheduler.num_running + bench.scheduler.num_waiting:
        order += [request_id for request_id in ran(bench.step()) if request_id not in order]
    assert order == ["first", "long", "short"]


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_tiny_pool_preempts_the_newest_and_the_tokens_stay_the_same(prefix_caching: bool) -> None:
    bench = SchedulerBench(FixedK(3), num_blocks=17, hit_rate=0.5, prefix_caching=prefix_caching)
    prompts = {str(index): prompt_of(9, index) for index in range(4)}
    for request_id, prompt in prompts.items():
        bench.add(request_id, prompt, max_tokens=40)
    bench.run()
    restarts: dict[str, list[int]] = {}
    for request_id in prompts:
        parts = [parts_of(plan)[request_id] for plan in bench.runner.plans if request_id in parts_of(plan)]
        restarts[request_id] = [part.start for part in parts[1:] if len(part.token_ids) - part.num_drafts > 1]
    assert restarts["3"], "the newest was preempted"
    assert not restarts["0"], "the oldest never was"
    if prefix_caching:
        assert max(restarts["3"]) > 0, "it found some of its own blocks again"
    else:
        assert set(restarts["3"]) == {0}
    for request_id, prompt in prompts.items():
        assert bench.tokens[request_id] == expected_output(prompt, 40, 64, frozenset())[0]
    assert bench.owned == 0


class ListedK:
    """K of each step from a list; the last one stays."""

    def __init__(self, *ks: int) -> None:
        self.ks = list(ks)

    def num_speculative_tokens(self, batch_size: int) -> int:
        return self.ks[0]

    def observe(self, feedback: DraftFeedback) -> None:
        pass

    def next_step(self) -> None:
        if len(self.ks) > 1:
            self.ks.pop(0)


def test_a_step_verifies_exactly_the_drafts_that_its_k_allows() -> None:
    policy = ListedK(4, 4, 2, 3, 0, 0, 5, 5, 6)
    bench = SchedulerBench(policy, max_k=6)
    bench.add("a", prompt_of(5))
    verified: list[int] = []
    proposed: list[int] = []
    for _ in range(10):
        part = parts_of(bench.step())["a"]
        verified.append(part.num_drafts)
        proposed.append(part.num_propose)
        policy.next_step()
    # The prompt drafts 4; then each step verifies what was drafted, cut to its own K.
    assert proposed == [4, 4, 2, 3, 0, 0, 5, 5, 6, 6]
    assert verified == [0, 4, 2, 2, 0, 0, 0, 5, 5, 6]
    tokens = 1 + sum(count + 1 for count in verified[1:])
    assert bench.tokens["a"] == expected_output(prompt_of(5), tokens, 64, frozenset())[0]
    acceptance = bench.last["a"].acceptance
    assert (acceptance.steps, acceptance.drafted, acceptance.accepted) == (9, sum(verified), sum(verified))


def test_drafts_do_not_make_a_prompt_of_a_decoding_sequence() -> None:
    """1 + K tokens of every sequence, more than the prompts' budget together, are one decode batch beside a chunk."""
    bench = SchedulerBench(FixedK(8), budget=16)
    for index in range(5):
        bench.expect(str(index), prompt_of(3, index), max_tokens=40)
    bench.step()
    bench.expect("late", prompt_of(40, 9), max_tokens=3)
    for first in (0, 16, 32):
        plan = bench.step()
        decode, chunk = plan.batches[0], plan.batches[-1]
        assert not decode.is_prefill
        assert len(decode.sequences) == 5
        assert {len(part.token_ids) for part in decode.sequences} == {9}
        assert {part.num_drafts for part in decode.sequences} == {8}
        assert chunk.is_prefill
        assert (chunk.sequences[0].start, len(chunk.sequences[0].token_ids)) == (first, min(16, 40 - first))
    bench.run()
    assert {bench.last[str(index)].acceptance.drafted > 0 for index in range(5)} == {True}


def test_a_sequence_past_the_head_s_own_context_runs_without_drafts_and_the_batch_goes_on() -> None:
    bench = SchedulerBench(FixedK(3), max_draft_len=30)
    bench.expect("long", prompt_of(20, 1))
    bench.expect("short", prompt_of(4, 2), max_tokens=50)
    bench.expect("too long", prompt_of(40, 3), max_tokens=20)
    for _ in range(12):
        for batch in bench.step().batches:
            for part in batch.sequences:
                length = part.start + len(part.token_ids) - part.num_drafts
                drafts = part.next_prompt_token is None and length - 1 < 30 - 3
                assert part.num_propose == (3 if drafts else 0)
                # A draft may not have needed the head's KV at a position that it does not know.
                assert part.num_drafts == 0 or length + part.num_drafts - 1 < 30
    bench.run()
    assert {key: len(tokens) for key, tokens in bench.tokens.items()} == {"long": 44, "short": 50, "too long": 20}
    assert bench.last["too long"].acceptance.drafted == 0
    drafted = {part.num_drafts for plan in bench.runner.plans for part in parts_of(plan).values()}
    assert drafted == {0, 3}
    mixed = [plan for plan in bench.runner.plans if {part.num_drafts for part in parts_of(plan).values()} == {0, 3}]
    assert len(mixed) > 2, "sequences with and without drafts ran side by side"


def test_drafts_of_a_preempted_sequence_are_dropped() -> None:
    bench = SchedulerBench(FixedK(4), num_blocks=17, hit_rate=1.0)
    for index in range(3):
        bench.expect(str(index), prompt_of(12, index), max_tokens=40)
    before: dict[str, SequencePlan] = {}
    resumed = 0
    while bench.scheduler.num_running + bench.scheduler.num_waiting:
        parts = parts_of(bench.step())
        for request_id, part in parts.items():
            if len(part.token_ids) - part.num_drafts > 1 and request_id in before:
                assert part.num_drafts == 0
                resumed += 1
        before.update(parts)
    assert resumed > 0
    assert bench.owned == 0


def test_without_a_drafter_nothing_is_drafted() -> None:
    bench = SchedulerBench(FixedK(5), max_k=0)
    bench.add("a", prompt_of(5), max_tokens=6)
    bench.run()
    assert all(batch.num_speculative_tokens == 0 for plan in bench.runner.plans for batch in plan.batches)
    assert bench.last["a"].acceptance.mean_acceptance_length == 1.0


def test_a_request_may_cap_its_k() -> None:
    bench = SchedulerBench(FixedK(4))
    bench.add("free", prompt_of(5, 1))
    bench.add("capped", prompt_of(5, 2), num_speculative_tokens=2)
    bench.add("off", prompt_of(5, 3), num_speculative_tokens=0)
    bench.step()
    for _ in range(4):
        plan = bench.step()
        assert {request_id: part.num_drafts for request_id, part in parts_of(plan).items()} == {
            "free": 4,
            "capped": 2,
            "off": 0,
        }
        assert plan.batches[0].num_speculative_tokens == 4
    assert [len(bench.tokens[request_id]) for request_id in ("free", "capped", "off")] == [21, 13, 5]
    acceptance = bench.last["capped"].acceptance
    assert (acceptance.steps, acceptance.drafted, acceptance.accepted) == (4, 8, 8)
    assert bench.last["off"].acceptance.mean_acceptance_length == 1.0


def test_a_batch_of_capped_requests_runs_the_smaller_program() -> None:
    bench = SchedulerBench(FixedK(4))
    bench.add("capped", prompt_of(5, 2), num_speculative_tokens=2)
    bench.step()
    assert bench.step().batches[0].num_speculative_tokens == 2


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("hit_rate", [0.0, 0.6, 1.0])
def test_speculation_stops_before_max_model_len_and_generation_at_it(k: int, hit_rate: float) -> None:
    bench = SchedulerBench(FixedK(k), max_model_len=37, hit_rate=hit_rate)
    bench.add("a", prompt_of(6))
    bench.run()
    assert bench.last["a"].num_output_tokens == 31
    assert bench.finish_reason("a") == "length"
    assert bench.tokens["a"] == expected_output(prompt_of(6), None, 37, frozenset())[0]
    parts = [parts_of(plan)["a"] for plan in bench.runner.plans]
    for part in parts:
        assert part.start + part.num_drafts < 37
        if part.start >= 37 - k:
            assert part.num_drafts == 0
            assert part.num_propose == 0
    assert any(part.num_drafts == k for part in parts)
    assert max(len(part.block_table) for part in parts) == 10


def test_a_stop_token_ends_within_an_accepted_run() -> None:
    tokens, _ = expected_output(prompt_of(5), 10, 64, frozenset())
    assert len(set(tokens)) == 10
    bench = SchedulerBench(FixedK(4))
    bench.add("a", prompt_of(5), stop_token_ids=(tokens[3],))
    bench.run()
    assert bench.tokens["a"] == tokens[:4]
    assert bench.finish_reason("a") == "stop"
    assert bench.last["a"].num_output_tokens == 4
    assert bench.owned == 0


def test_abort_frees_the_blocks_in_every_phase() -> None:
    bench = SchedulerBench(FixedK(3), budget=16, max_num_seqs=2)
    bench.add("decoding", prompt_of(4))
    bench.add("prefilling", prompt_of(40))
    bench.add("waiting", prompt_of(4))
    bench.step()
    assert parts_of(bench.runner.plans[-1])["prefilling"].next_prompt_token is not None
    before = bench.owned
    waiting = bench.scheduler.abort("waiting")
    assert waiting is not None
    assert waiting.finish_reason == "abort"
    assert bench.owned == before
    prefilling = bench.scheduler.abort("prefilling")
    assert prefilling is not None
    assert prefilling.blocks == []
    assert 0 < bench.owned < before
    assert bench.scheduler.abort("decoding") is not None
    assert bench.owned == 0
    assert bench.scheduler.num_running == bench.scheduler.num_waiting == 0
    assert bench.scheduler.abort("decoding") is None
    assert bench.scheduler.plan().batches == ()


def test_abort_of_a_preempted_sequence() -> None:
    bench = SchedulerBench(num_blocks=17, max_k=0)
    for index in range(3):
        bench.add(str(index), prompt_of(16, index))
    while not bench.scheduler.num_waiting:
        bench.step()
    assert bench.scheduler.abort("2") is not None
    bench.run()
    assert bench.finish_reason("2") is None
    assert bench.tokens["1"] == expected_output(prompt_of(16, 1), None, 64, frozenset())[0]
    assert bench.owned == 0


def test_a_finished_sequence_leaves_at_once() -> None:
    bench = SchedulerBench()
    bench.add("a", prompt_of(4), max_tokens=1)
    bench.step()
    assert bench.finish_reason("a") == "length"
    assert bench.owned == 0
    assert bench.scheduler.num_running == 0


@settings(derandomize=True, max_examples=250, deadline=None)
@given(data=st.data())
def test_random_schedules_leak_no_block_and_finish_everything_rightly(data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([1, 3, 4, 16]), "block size")
    max_model_len = data.draw(st.integers(16, 64), "max_model_len")
    needed = -(-max_model_len // block_size)
    max_k = data.draw(st.integers(0, 8), "max K")
    chance = random.Random(data.draw(st.integers(0, 999), "seed"))
    bench = SchedulerBench(
        RandomK(chance.randrange(100), max_k),
        max_model_len=max_model_len,
        max_num_seqs=data.draw(st.integers(1, 6), "max_num_seqs"),
        budget=data.draw(st.integers(16, 40), "budget"),
        block_size=block_size,
        max_k=max_k,
        num_blocks=1 + needed + data.draw(st.integers(0, 2 * needed), "spare blocks"),
        hit_rate=data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]), "hit rate"),
        seed=chance.randrange(100),
        prefix_caching=data.draw(st.booleans(), "prefix caching"),
        attends_in_place=data.draw(st.booleans(), "attends_in_place"),
        max_draft_len=data.draw(st.one_of(st.none(), st.integers(1, max_model_len)), "max_draft_len"),
    )
    arrivals = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12), "steps between arrivals")
    expected: dict[str, tuple[list[int], str]] = {}
    aborted: set[str] = set()
    common = prompt_of(max_model_len)
    for index, pause in enumerate(arrivals):
        for _ in range(pause):
            bench.step()
            if chance.random() < 0.1 and expected:
                victim = chance.choice(sorted(expected))
                if bench.scheduler.abort(victim) is not None:
                    aborted.add(victim)
        length = data.draw(st.integers(1, max_model_len - 1), "prompt")
        shared = chance.choice([0, chance.randint(0, length), length])
        prompt = common[:shared] + prompt_of(length - shared, index)
        max_tokens = data.draw(st.one_of(st.none(), st.integers(1, 40)), "max_tokens")
        stop = (7, 8, 9) if index % 3 == 0 else ()
        limit = data.draw(st.one_of(st.none(), st.integers(0, 5)), "K of the request")
        request_id = str(index)
        bench.add(request_id, prompt, max_tokens=max_tokens, stop_token_ids=stop, num_speculative_tokens=limit)
        expected[request_id] = expected_output(prompt, max_tokens, max_model_len, frozenset(stop))
        # Without its stop tokens: a run that is cut by one goes on in the KV.
        bench.runner.texts[request_id] = prompt + expected_output(prompt, None, max_model_len, frozenset())[0]
    bench.run()
    assert bench.owned == 0
    assert bench.allocator.allocate(bench.num_blocks - 1) is not None
    for request_id, (tokens, reason) in expected.items():
        if request_id in aborted:
            assert bench.tokens[request_id] == tokens[: len(bench.tokens[request_id])]
        else:
            assert (bench.tokens[request_id], bench.finish_reason(request_id)) == (tokens, reason)
    first_steps = list(dict.fromkeys(request_id for plan in bench.runner.plans for request_id in admissions(plan)))
    assert first_steps == sorted(first_steps, key=int), "nobody overtakes"
    for plan in bench.runner.plans:
        prefilled = sum(len(part.token_ids) for batch in plan.batches if batch.is_prefill for part in batch.sequences)
        assert prefilled <= bench.budget
        assert len(parts_of(plan)) <= bench.max_num_seqs
