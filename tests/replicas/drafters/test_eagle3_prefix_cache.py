"""Warm drafts equal cold ones: a sequence that finds its KV in the cache drafts as if it had computed it."""

import random
from pathlib import Path

import pytest

from tests.reference.hand_built_engine import Bench, TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.tiny_checkpoints import END

BLOCK = 4
NEW = 12


def prompt_of(length: int, seed: int) -> tuple[int, ...]:
    chance = random.Random(f"{length} {seed}")
    return tuple(chance.randrange(END) for _ in range(length))


def cold_drafts(
    tiny_target: TinyTarget, tiny_head: Path, prompt: tuple[int, ...]
) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """Output and drafts by length, without a cache."""
    config = tiny_target.config(enable_prefix_caching=False)
    bench = tiny_target.bench(config, FixedK(5), head=tiny_head)
    answer = generate(bench.engine, [greedy_request("cold", prompt, NEW)])["cold"]
    return answer.token_ids, bench.runner.drafts_of("cold")


def assert_warm_equals_cold(
    bench: Bench, tiny_target: TinyTarget, tiny_head: Path, prompt: tuple[int, ...], cached: int
) -> None:
    request_id = f"warm {len(prompt)}"
    answer = generate(bench.engine, [greedy_request(request_id, prompt, NEW)])[request_id]
    assert answer.last.num_cached_tokens == cached
    tokens, drafts = cold_drafts(tiny_target, tiny_head, prompt)
    assert answer.token_ids == tokens
    assert bench.runner.drafts_of(request_id) == drafts
    assert drafts[0][0] == len(prompt) + 1


@pytest.mark.parametrize("length", [5, 8, 9, 12, 13, 29])
@pytest.mark.parametrize("k", [0, 5])
def test_the_same_prompt_again(length: int, k: int, tiny_target: TinyTarget, tiny_head: Path) -> None:
    """Also what was computed at K=0 serves a sequence that drafts."""
    policy = FixedK(k)
    bench = tiny_target.bench(tiny_target.config(), policy, head=tiny_head)
    prompt = prompt_of(length, 0)
    generate(bench.engine, [greedy_request("first", prompt, NEW)])
    policy.k = 5
    cached = (length - 1) // BLOCK * BLOCK
    assert_warm_equals_cold(bench, tiny_target, tiny_head, prompt, cached)
    stats = bench.engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (2 * length, cached)


@pytest.mark.parametrize(("common", "cached"), [(8, 4), (9, 8), (11, 8), (12, 8), (16, 12), (17, 16)])
def test_a_prompt_that_goes_on_differently(common: int, cached: int, tiny_target: TinyTarget, tiny_head: Path) -> None:
    """Where the prompts part at the end of a block, the head's last entry of it would be another's."""
    bench = tiny_target.bench(tiny_target.config(), FixedK(5), head=tiny_head)
    first = prompt_of(20, 0)
    other = (*first[:common], (first[common] + 1) % END, *prompt_of(9, 1))
    generate(bench.engine, [greedy_request("first", first, NEW)])
    assert_warm_equals_cold(bench, tiny_target, tiny_head, other, cached)


@pytest.mark.parametrize("budget", [16, 64])
def test_a_conversation_that_goes_on(budget: int, tiny_target: TinyTarget, tiny_head: Path) -> None:
    """Blocks that were filled by decoding, with K at random and most drafts rejected."""
    policy = RandomK(3, 6)
    bench = tiny_target.bench(tiny_target.config(max_num_batched_tokens=budget), policy, head=tiny_head)
    first = prompt_of(21, 2)
    answer = generate(bench.engine, [greedy_request("first", first, 40)])["first"].token_ids
    bench.scheduler._k_policy = FixedK(5)  # pyright: ignore[reportPrivateUsage]
    for turn, (length, cached) in enumerate([(61, 60), (45, 44), (30, 28)]):
        prompt = (*first, *answer)[:length] + ((7,) if turn == 0 else ())
        assert_warm_equals_cold(bench, tiny_target, tiny_head, prompt, cached)


def test_the_head_s_entry_really_depends_on_the_token_after_the_block(tiny_target: TinyTarget, tiny_head: Path) -> None:
    """With blocks found by their own tokens alone, warm drafts would differ: the tests above do not pass by chance."""
    prompt = prompt_of(9, 0)
    differing = 0
    for seed in range(12):
        other = (*prompt[:8], (prompt[8] + 1 + seed) % END, *prompt_of(3, seed))
        bench = tiny_target.bench(tiny_target.config(), FixedK(5), head=tiny_head)
        generate(bench.engine, [greedy_request("first", prompt, NEW)])
        bench.engine.add_request(greedy_request("warm", other, NEW))
        (waiting,) = bench.scheduler._waiting  # pyright: ignore[reportPrivateUsage]
        bench.scheduler._prefix_cache.extend(waiting.block_identities, prompt)  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        answer = generate(bench.engine, [])["warm"]
        assert answer.last.num_cached_tokens == 8
        tokens, right = cold_drafts(tiny_target, tiny_head, other)
        assert answer.token_ids == tokens, "lossless all the same"
        differing += bench.runner.drafts_of("warm") != right
    assert differing > 3


def test_preempted_sequences_find_their_blocks_and_draft_the_same(tiny_target: TinyTarget, tiny_head: Path) -> None:
    config = tiny_target.config(num_blocks=33, max_num_seqs=4)
    bench = tiny_target.bench(config, FixedK(4), head=tiny_head)
    prompts = {str(index): prompt_of(13 + index, index) for index in range(4)}
    answers = generate(bench.engine, [greedy_request(key, prompt, 60) for key, prompt in prompts.items()])
    resumed = 0
    for key, prompt in prompts.items():
        parts = [part for plan, _ in bench.runner.steps for batch in plan.batches for part in batch.sequences]
        mine = [part for part in parts if part.request_id == key]
        resumed += sum(part.start > 0 and len(part.token_ids) > 1 + part.num_drafts for part in mine[1:])
        alone = tiny_target.bench(tiny_target.config(enable_prefix_caching=False), FixedK(4), head=tiny_head)
        expected = generate(alone.engine, [greedy_request(key, prompt, 60)])[key]
        assert answers[key].token_ids == expected.token_ids
        by_length = dict(alone.runner.drafts_of(key))
        for length, drafts in bench.runner.drafts_of(key):
            if length in by_length:
                assert drafts == by_length[length], f"{key} after {length} tokens"
    assert resumed > 0, "a preempted sequence went on from its own blocks"
