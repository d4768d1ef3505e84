"""The scheduler with a symbolic runner: no torch, and every token depends on the KV that the plan's blocks hold."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.kv_cache.block_allocator import BlockAllocator
from replicas.request import RequestOutput
from replicas.scheduling.k_policy import KPolicy
from replicas.scheduling.scheduler import Scheduler, SchedulerLimits
from replicas.scheduling.step_plan import SequencePlan, StepPlan
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.symbolic_runner import VOCAB, SymbolicRunner, expected_output, sequence


@dataclass
class Bench:
    """A scheduler, its pool and a runner; 16 sequences of 64 tokens fit unless a test says otherwise."""

    policy: KPolicy = field(default_factory=lambda: FixedK(0))
    max_model_len: int = 64
    max_num_seqs: int = 16
    budget: int = 32
    block_size: int = 4
    max_k: int = 8
    num_blocks: int = 257
    hit_rate: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.allocator = BlockAllocator(self.num_blocks)
        limits = SchedulerLimits(self.max_model_len, self.max_num_seqs, self.budget, self.block_size, self.max_k)
        self.scheduler = Scheduler(limits, self.allocator, self.policy)
        self.runner = SymbolicRunner(self.num_blocks, self.block_size, self.hit_rate, self.seed)
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.last: dict[str, RequestOutput] = {}

    def add(self, request_id: str, prompt: list[int], **sampling: object) -> None:
        self.scheduler.add(sequence(request_id, prompt, self.max_model_len, **sampling))

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        for output in self.scheduler.apply(plan, self.runner.execute(plan)):
            self.tokens[output.request_id] += output.token_ids
            self.last[output.request_id] = output
        return plan

    def run(self) -> None:
        steps = 0
        while self.scheduler.num_running + self.scheduler.num_waiting:
            self.step()
            steps += 1
            assert steps < 5000, "no progress"

    def finish_reason(self, request_id: str) -> str | None:
        return self.last[request_id].finish_reason if request_id in self.last else None

    @property
    def owned(self) -> int:
        return self.num_blocks - 1 - self.allocator.num_free


def prompt_of(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(f"{length} {seed}")
    return [chance.randrange(VOCAB) for _ in range(length)]


def parts_of(plan: StepPlan) -> dict[str, SequencePlan]:
    return {part.request_id: part for batch in plan.batches for part in batch.sequences}


def ran(plan: StepPlan) -> dict[str, int]:
    """Tokens each request ran."""
    return {request_id: len(part.token_ids) for request_id, part in parts_of(plan).items()}


def test_prompts_are_prefilled_in_chunks_within_the_budget() -> None:
    bench = Bench(budget=16)
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
    bench = Bench(budget=16)
    prompt = prompt_of(40)
    bench.add("a", prompt, max_tokens=2)
    plans = [bench.step() for _ in range(3)]
    assert [parts_of(plan)["a"].next_prompt_token for plan in plans] == [prompt[16], prompt[32], None]
    assert [parts_of(plan)["a"].start for plan in plans] == [0, 16, 32]
    assert bench.tokens["a"] == expected_output(prompt, 1, 64, frozenset())[0]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 18, 33, 63])
def test_prompts_of_every_length_around_the_chunk(length: int) -> None:
    bench = Bench(FixedK(3), budget=16)
    bench.add("a", prompt_of(length), max_tokens=9)
    bench.run()
    assert bench.tokens["a"] == expected_output(prompt_of(length), 9, 64, frozenset())[0]


def test_admission_is_first_come_first_served_up_to_max_num_seqs() -> None:
    bench = Bench(max_num_seqs=2)
    for index in range(4):
        bench.add(str(index), prompt_of(4, index), max_tokens=2 + index)
    assert list(ran(bench.step())) == ["0", "1"]
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 2)
    assert list(ran(bench.step())) == ["0", "1"]
    assert list(ran(bench.step())) == ["1", "2"]
    bench.run()
    assert [bench.last[str(index)].num_output_tokens for index in range(4)] == [2, 3, 4, 5]


def test_a_long_prompt_in_front_is_not_overtaken_for_want_of_blocks() -> None:
    bench = Bench(num_blocks=17, max_k=0)
    bench.add("first", prompt_of(20), max_tokens=8)
    bench.add("long", prompt_of(60), max_tokens=2)
    bench.add("short", prompt_of(2), max_tokens=2)
    order: list[str] = []
    while bench.scheduler.num_running + bench.scheduler.num_waiting:
        order += [request_id for request_id in ran(bench.step()) if request_id not in order]
    assert order == ["first", "long", "short"]


def test_a_tiny_pool_preempts_the_newest_and_the_tokens_stay_the_same() -> None:
    bench = Bench(FixedK(3), num_blocks=17, hit_rate=0.5)
    prompts = {str(index): prompt_of(9, index) for index in range(4)}
    for request_id, prompt in prompts.items():
        bench.add(request_id, prompt, max_tokens=40)
    bench.run()
    starts = [parts_of(plan)["3"].start for plan in bench.runner.plans if "3" in parts_of(plan)]
    assert starts.count(0) > 1, "the newest was recomputed"
    starts = [parts_of(plan)["0"].start for plan in bench.runner.plans if "0" in parts_of(plan)]
    assert starts.count(0) == 1, "the oldest never was"
    for request_id, prompt in prompts.items():
        assert bench.tokens[request_id] == expected_output(prompt, 40, 64, frozenset())[0]
    assert bench.owned == 0


class ListedK:
    """K of each step from a list; the last one stays."""

    def __init__(self, *ks: int) -> None:
        self.ks = list(ks)

    def num_speculative_tokens(self, batch_size: int) -> int:
        return self.ks[0]

    def next_step(self) -> None:
        if len(self.ks) > 1:
            self.ks.pop(0)


def test_a_step_verifies_exactly_the_drafts_that_its_k_allows() -> None:
    policy = ListedK(4, 4, 2, 3, 0, 0, 5, 5, 99)
    bench = Bench(policy, max_k=6)
    bench.add("a", prompt_of(5))
    verified: list[int] = []
    proposed: list[int] = []
    for _ in range(10):
        part = parts_of(bench.step())["a"]
        verified.append(part.num_drafts)
        proposed.append(part.num_propose)
        policy.next_step()
    # The prompt drafts 4; then each step verifies what was drafted, cut to its own K; 99 is cut to the compiled 6.
    assert proposed == [4, 4, 2, 3, 0, 0, 5, 5, 6, 6]
    assert verified == [0, 4, 2, 2, 0, 0, 0, 5, 5, 6]
    tokens = 1 + sum(count + 1 for count in verified[1:])
    assert bench.tokens["a"] == expected_output(prompt_of(5), tokens, 64, frozenset())[0]
    acceptance = bench.last["a"].acceptance
    assert (acceptance.steps, acceptance.drafted, acceptance.accepted) == (9, sum(verified), sum(verified))


def test_without_a_drafter_nothing_is_drafted() -> None:
    bench = Bench(FixedK(5), max_k=0)
    bench.add("a", prompt_of(5), max_tokens=6)
    bench.run()
    assert all(batch.num_speculative_tokens == 0 for plan in bench.runner.plans for batch in plan.batches)
    assert bench.last["a"].acceptance.mean_acceptance_length == 1.0


def test_a_request_may_cap_its_k() -> None:
    bench = Bench(FixedK(4))
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
    bench = Bench(FixedK(4))
    bench.add("capped", prompt_of(5, 2), num_speculative_tokens=2)
    bench.step()
    assert bench.step().batches[0].num_speculative_tokens == 2


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("hit_rate", [0.0, 0.6, 1.0])
def test_speculation_stops_before_max_model_len_and_generation_at_it(k: int, hit_rate: float) -> None:
    bench = Bench(FixedK(k), max_model_len=37, hit_rate=hit_rate)
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
    bench = Bench(FixedK(4))
    bench.add("a", prompt_of(5), stop_token_ids=(tokens[3],))
    bench.run()
    assert bench.tokens["a"] == tokens[:4]
    assert bench.finish_reason("a") == "stop"
    assert bench.last["a"].num_output_tokens == 4
    assert bench.owned == 0


def test_abort_frees_the_blocks_in_every_phase() -> None:
    bench = Bench(FixedK(3), budget=16, max_num_seqs=2)
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
    bench = Bench(num_blocks=17, max_k=0)
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
    bench = Bench()
    bench.add("a", prompt_of(4), max_tokens=1)
    bench.step()
    assert bench.finish_reason("a") == "length"
    assert bench.owned == 0
    assert bench.scheduler.num_running == 0


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data())
def test_random_schedules_leak_no_block_and_finish_everything_rightly(data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([1, 3, 4, 16]), "block size")
    max_model_len = data.draw(st.integers(16, 64), "max_model_len")
    needed = -(-max_model_len // block_size)
    max_k = data.draw(st.integers(0, 8), "max K")
    bench = Bench(
        RandomK(data.draw(st.integers(0, 99)), 9),
        max_model_len=max_model_len,
        max_num_seqs=data.draw(st.integers(1, 6), "max_num_seqs"),
        budget=data.draw(st.integers(16, 40), "budget"),
        block_size=block_size,
        max_k=max_k,
        num_blocks=1 + needed + data.draw(st.integers(0, needed), "spare blocks"),
        hit_rate=data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]), "hit rate"),
        seed=data.draw(st.integers(0, 99)),
    )
    arrivals = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=9), "steps between arrivals")
    aborts = data.draw(st.sets(st.integers(0, len(arrivals) - 1), max_size=3), "aborted")
    expected: dict[str, tuple[list[int], str]] = {}
    for index, pause in enumerate(arrivals):
        for _ in range(pause):
            bench.step()
        prompt = prompt_of(data.draw(st.integers(1, max_model_len - 1)), index)
        max_tokens = data.draw(st.one_of(st.none(), st.integers(1, 40)))
        stop = (7, 8, 9) if index % 3 == 0 else ()
        limit = data.draw(st.one_of(st.none(), st.integers(0, 5)))
        bench.add(str(index), prompt, max_tokens=max_tokens, stop_token_ids=stop, num_speculative_tokens=limit)
        expected[str(index)] = expected_output(prompt, max_tokens, max_model_len, frozenset(stop))
        if index in aborts:
            bench.scheduler.abort(str(index if index % 2 else index // 2))
    bench.run()
    assert bench.owned == 0
    assert bench.allocator.allocate(bench.num_blocks - 1) is not None
    for request_id, (tokens, reason) in expected.items():
        if bench.finish_reason(request_id) is None:
            assert int(request_id) in {index if index % 2 else index // 2 for index in aborts}, (
                f"{request_id} never finished"
            )
            assert bench.tokens[request_id] == tokens[: len(bench.tokens[request_id])]
        else:
            assert bench.tokens[request_id] == tokens
            assert bench.finish_reason(request_id) == reason
