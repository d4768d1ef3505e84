"""Which blocks a prompt finds again, and that nobody gets another text's."""

import pytest

from replicas.scheduling.step_plan import SequencePlan
from tests.reference.k_policies import FixedK
from tests.reference.scheduler_bench import SchedulerBench, parts_of, prompt_of


def first_part(bench: SchedulerBench, request_id: str) -> SequencePlan:
    return next(parts_of(plan)[request_id] for plan in bench.runner.plans if request_id in parts_of(plan))


@pytest.mark.parametrize(
    ("length", "cached"),
    # Blocks of 4. At least one token runs; and the token after a block is part of what the block is.
    [(1, 0), (4, 0), (5, 4), (6, 4), (8, 4), (9, 8), (12, 8), (13, 12)],
)
def test_a_prompt_again_runs_from_its_last_full_block_on(length: int, cached: int) -> None:
    bench = SchedulerBench(FixedK(3))
    for request_id in ("cold", "warm"):
        bench.expect(request_id, prompt_of(length), max_tokens=6)
        bench.run()
    assert first_part(bench, "cold").start == 0
    part = first_part(bench, "warm")
    assert (part.start, part.token_ids) == (cached, tuple(prompt_of(length)[cached:]))
    assert part.block_table[: cached // 4] == first_part(bench, "cold").block_table[: cached // 4]
    assert bench.last["warm"].num_cached_tokens == cached
    assert bench.last["cold"].num_cached_tokens == 0
    stats = bench.scheduler.prefix_cache_stats
    assert (stats.queried_tokens, stats.hit_tokens) == (2 * length, cached)


def test_without_the_cache_everything_runs_again() -> None:
    bench = SchedulerBench(prefix_caching=False)
    for request_id in ("cold", "again"):
        bench.expect(request_id, prompt_of(20), max_tokens=6)
        bench.run()
    assert first_part(bench, "again").start == 0
    stats = bench.scheduler.prefix_cache_stats
    assert (stats.queried_tokens, stats.hit_tokens, bench.last["again"].num_cached_tokens) == (0, 0, 0)


def test_a_request_may_insist_on_running_its_whole_prompt() -> None:
    bench = SchedulerBench()
    bench.expect("cold", prompt_of(20), max_tokens=6)
    bench.run()
    bench.expect("whole", prompt_of(20), max_tokens=6, prompt_logprobs=0)
    bench.run()
    assert first_part(bench, "whole").start == 0
    assert bench.scheduler.prefix_cache_stats.queried_tokens == 20


def test_a_block_is_only_found_if_the_token_after_it_is_the_same() -> None:
    """The head's KV in the block's last slot comes from that token; the runner would notice a wrong one."""
    bench = SchedulerBench(FixedK(3))
    common = prompt_of(8)
    for request_id, tail in (("cold", [1, 2]), ("other", [3, 2]), ("same", [1, 5])):
        bench.expect(request_id, common + tail, max_tokens=6)
        bench.run()
    assert first_part(bench, "other").start == 4
    assert first_part(bench, "same").start == 8


def test_a_conversation_finds_its_answers_too() -> None:
    bench = SchedulerBench(FixedK(4), hit_rate=0.5)
    bench.expect("first", prompt_of(10), max_tokens=15)
    bench.run()
    # 25 tokens by then; the 24 that were computed fill 6 blocks, and the 25th follows the sixth.
    text = prompt_of(10) + bench.tokens["first"]
    bench.expect("second", [*text, 9, 9], max_tokens=5)
    bench.run()
    assert bench.last["second"].num_cached_tokens == 24


def test_sequences_that_run_together_share_blocks() -> None:
    bench = SchedulerBench(FixedK(2), budget=64)
    common = prompt_of(20)
    bench.expect("first", [*common, 1], max_tokens=30)
    bench.step()
    alone = bench.owned
    bench.expect("second", [*common, 1, 2], max_tokens=20)
    bench.expect("third", [*common, 1, 3], max_tokens=20)
    bench.step()
    # 22 tokens, one more and twice the largest K need 10 blocks: 5 are shared.
    assert bench.owned == alone + 2 * (10 - 5)
    tables = [part.block_table for part in parts_of(bench.runner.plans[-1]).values()]
    assert tables[0][:5] == tables[1][:5] == tables[2][:5]
    bench.run()
    assert bench.runner.num_shared > 30
    assert bench.owned == 0


def test_a_shared_block_survives_the_end_of_one_owner() -> None:
    bench = SchedulerBench(budget=64, num_blocks=23, max_k=0)
    common = prompt_of(20)
    bench.expect("first", [*common, 1, 2, 3], max_tokens=2)
    bench.step()
    bench.expect("second", [*common, 1, 4], max_tokens=30)
    while bench.scheduler.num_running > 1 or "second" not in bench.tokens:
        bench.step()
    # Everything that is free goes to others, who would overwrite a block that is not really free.
    for index in range(6):
        bench.expect(f"other {index}", prompt_of(15, index), max_tokens=10)
    bench.run()
    assert len(bench.tokens["second"]) == 30
    assert bench.owned == 0


def test_a_hit_is_no_reason_to_take_more_blocks_than_there_are() -> None:
    """Cached blocks that nobody owns count as free until a hit takes them."""
    bench = SchedulerBench(num_blocks=17, max_k=0, budget=64)
    bench.expect("before", prompt_of(41), max_tokens=1)
    bench.run()
    bench.expect("holder", prompt_of(22, 1), max_tokens=2)
    bench.expect("hit", prompt_of(41), max_tokens=3)
    bench.step()
    assert list(parts_of(bench.runner.plans[-1])) == ["holder"]
    bench.run()
    assert bench.last["hit"].finish_reason == "length"


def test_a_lone_sequence_copies_what_it_cannot_go_on_behind() -> None:
    bench = SchedulerBench(FixedK(2), attends_in_place=True)
    for request_id in ("first", "again"):
        bench.expect(request_id, prompt_of(22), max_tokens=10)
        bench.run()
    first, again = first_part(bench, "first").block_table, first_part(bench, "again").block_table
    assert not set(first[:5]) & set(again)
    plans = [plan for plan in bench.runner.plans if any(batch.copied_blocks for batch in plan.batches)]
    assert [plan.batches[0].copied_blocks for plan in plans] == [tuple(zip(first[:5], again[:5], strict=True))]
    # The copies are no second identity, and what was copied is still there, for sequences that run together to share.
    for request_id in ("one", "two"):
        bench.expect(request_id, [*prompt_of(22), 1], max_tokens=10)
    bench.step()
    tables = [part.block_table for part in parts_of(bench.runner.plans[-1]).values()]
    assert tables[1][:5] == first[:5]
    bench.run()
    assert bench.owned == 0


def test_a_lone_sequence_goes_on_behind_known_blocks_if_it_can() -> None:
    bench = SchedulerBench(FixedK(2), attends_in_place=True)
    bench.expect("first", prompt_of(22), max_tokens=10)
    bench.run()
    bench.expect("second", prompt_of(22) + bench.tokens["first"] + [1], max_tokens=10)
    bench.run()
    assert bench.last["second"].num_cached_tokens == 28
    assert not any(batch.copied_blocks for plan in bench.runner.plans for batch in plan.batches)
    assert first_part(bench, "second").block_table[:7] == first_part(bench, "first").block_table[:7]


def test_a_resumed_sequence_reports_the_hit_of_its_first_run() -> None:
    bench = SchedulerBench(FixedK(3), num_blocks=17)
    bench.expect("before", prompt_of(9, 1), max_tokens=1)
    bench.run()
    for index in range(3):
        bench.expect(str(index), prompt_of(9, index), max_tokens=40)
    bench.run()
    assert {key: bench.last[key].num_cached_tokens for key in "012"} == {"0": 0, "1": 8, "2": 0}
    assert bench.scheduler.prefix_cache_stats.queried_tokens == 4 * 9


@pytest.mark.parametrize("common", [0, 9, 33])
def test_prompts_one_at_a_time_lie_in_neighbouring_blocks_however_full_the_cache_is(common: int) -> None:
    """So that a device may attend them in place (docs/decisions/0003-one-kv-tensor.md)."""
    bench = SchedulerBench(num_blocks=257, max_k=3, max_model_len=120, attends_in_place=True)
    for index in range(120):
        prompt = prompt_of(common) + prompt_of(10 + index % 40, index)
        bench.expect(str(index), prompt, max_tokens=4 + 7 * index % 30)
        bench.run()
        assert bench.last[str(index)].num_cached_tokens == (common // 4 * 4 if index else 0)
    tables = [part.block_table for plan in bench.runner.plans for part in parts_of(plan).values()]
    in_place = sum(table == tuple(range(table[0], table[0] + len(table))) for table in tables)
    assert in_place > 0.9 * len(tables)
    assert bench.allocator.num_free == 256
