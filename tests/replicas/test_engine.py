"""The engine on tiny float32 targets: speculation changes speed, never tokens."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from replicas.config import SpeculativeConfig
from replicas.drafters.registry import DRAFTERS
from replicas.errors import RequestError
from replicas.request import GenerationRequest, SamplingParams
from tests.reference.decoding import greedy
from tests.reference.hand_built_engine import Answer, TinyTarget, generate, greedy_request, run_steps
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.scripted_drafter import ScriptedDrafter, continuation
from tests.reference.tiny_checkpoints import END, VOCAB

Speculative = dict[str, SpeculativeConfig]
Greedy = Callable[[tuple[int, ...], int], list[int]]
LONGEST = 48
PROMPTS = tuple(
    tuple(random.Random(length).choices(range(END), k=length)) for length in (1, 2, 3, 5, 8, 13, 16, 17, 21, 34, 47, 60)
)


@pytest.fixture(scope="session")
def expected(tiny_reference: LlamaForCausalLM) -> Greedy:
    """Greedy continuations of PROMPTS by transformers without a cache."""
    continued = cache(lambda prompt: greedy(tiny_reference, prompt, LONGEST))

    def first(prompt: tuple[int, ...], count: int) -> list[int]:
        return list(continued(prompt)[:count])

    return first


def scripted(expected: Greedy, hit_rate: float, seed: int = 0, block_size: int = 4) -> ScriptedDrafter:
    known = [(*prompt, *expected(prompt, LONGEST)) for prompt in PROMPTS]
    return ScriptedDrafter(continuation(known, VOCAB, hit_rate, seed), block_size=block_size)


def test_every_method_of_the_config_has_a_drafter_and_is_tested_here(speculative: Speculative) -> None:
    methods = SpeculativeConfig.model_fields["method"].annotation
    assert set(get_args(methods)) == DRAFTERS.keys() == speculative.keys()


@pytest.mark.parametrize("method", DRAFTERS)
@pytest.mark.parametrize("k", range(9))
def test_greedy_output_is_the_same_for_every_k(
    k: int, method: str, tiny_target: TinyTarget, speculative: Speculative, expected: Greedy
) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(k), speculative=speculative[method])
    answers = generate(bench.engine, [greedy_request(str(i), prompt, 30) for i, prompt in enumerate(PROMPTS)])
    for index, prompt in enumerate(PROMPTS):
        assert answers[str(index)].token_ids == expected(prompt, 30)
    drafted = sum(answer.last.acceptance.drafted for answer in answers.values())
    assert (drafted > 0) == (k > 0)


@pytest.mark.parametrize("k", range(1, 9))
def test_a_drafter_that_is_always_right_has_all_drafts_accepted(
    k: int, tiny_target: TinyTarget, expected: Greedy
) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(k), scripted(expected, 1.0))
    count = 1 + 3 * (k + 1)  # The prompt's own token, then three decode steps.
    answers = generate(bench.engine, [greedy_request(str(i), prompt, count) for i, prompt in enumerate(PROMPTS)])
    for index, prompt in enumerate(PROMPTS):
        answer = answers[str(index)]
        assert answer.token_ids == expected(prompt, count)
        acceptance = answer.last.acceptance
        assert (acceptance.steps, acceptance.drafted, acceptance.accepted) == (3, 3 * k, 3 * k)
        assert acceptance.mean_acceptance_length == k + 1
        assert acceptance.accepted_by_position == (3,) * k
        assert [len(output.token_ids) for output in answer.outputs] == [1, k + 1, k + 1, k + 1]


@pytest.mark.parametrize("k", range(1, 9))
def test_a_drafter_that_is_always_wrong_has_none_accepted(k: int, tiny_target: TinyTarget, expected: Greedy) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(k), scripted(expected, 0.0))
    answers = generate(bench.engine, [greedy_request(str(i), prompt, 9) for i, prompt in enumerate(PROMPTS)])
    for index, prompt in enumerate(PROMPTS):
        answer = answers[str(index)]
        assert answer.token_ids == expected(prompt, 9)
        acceptance = answer.last.acceptance
        assert (acceptance.steps, acceptance.drafted, acceptance.accepted) == (8, 8 * k, 0)
        assert acceptance.mean_acceptance_length == 1.0


def test_acceptance_counts_what_the_steps_show(tiny_target: TinyTarget, expected: Greedy) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(4), scripted(expected, 0.6))
    answers = generate(bench.engine, [greedy_request(str(i), prompt, 40) for i, prompt in enumerate(PROMPTS[:6])])
    for request_id, answer in answers.items():
        runs = [
            (part.num_drafts, len(result.sequences[request_id].token_ids) - 1)
            for plan, result in bench.runner.steps
            for batch in plan.batches
            for part in batch.sequences
            if part.request_id == request_id and not batch.is_prefill
        ]
        acceptance = answer.last.acceptance
        assert acceptance.steps == len(runs)
        assert acceptance.drafted == sum(drafted for drafted, _ in runs)
        assert acceptance.accepted == sum(accepted for _, accepted in runs)
        by_position = tuple(sum(accepted > position for _, accepted in runs) for position in range(4))
        assert acceptance.accepted_by_position == by_position
        assert 0 < acceptance.accepted < acceptance.drafted


@pytest.mark.parametrize("method", DRAFTERS)
@pytest.mark.parametrize(("size", "k"), [(1, 3), (3, 3), (8, 3), (8, 0)])
def test_a_batch_gives_the_same_as_one_at_a_time(
    size: int, k: int, method: str, tiny_target: TinyTarget, speculative: Speculative, expected: Greedy
) -> None:
    chosen = PROMPTS[2 : 2 + size]
    requests = [greedy_request(str(i), prompt, 8 + 3 * i) for i, prompt in enumerate(chosen)]
    drafting = speculative[method]
    together = generate(tiny_target.bench(tiny_target.config(), FixedK(k), speculative=drafting).engine, requests)
    alone = tiny_target.bench(tiny_target.config(), FixedK(k), speculative=drafting)
    for index, request in enumerate(requests):
        answer = generate(alone.engine, [request])[request.request_id]
        assert together[request.request_id].token_ids == answer.token_ids == expected(chosen[index], 8 + 3 * index)
        assert together[request.request_id].text == answer.text != ""


RATES = {"right": 1.0, "wrong": 0.0, "mixed": 0.7}
"""Of right drafts, of a scripted drafter."""


@settings(derandomize=True, max_examples=80, deadline=None)
@given(data=st.data())
def test_any_schedule_gives_the_target_s_own_tokens(
    data: st.DataObject, tiny_target: TinyTarget, speculative: Speculative, expected: Greedy
) -> None:
    """K at random each step, arrivals, chunks, prefix cache, tiny pools with preemption, and aborts."""
    kind = data.draw(st.sampled_from([*DRAFTERS, *RATES]), "drafter")
    seed = data.draw(st.integers(0, 999), "seed")
    block_size = data.draw(st.sampled_from([2, 4, 16]), "block_size")
    needed = -(-112 // block_size)
    config = tiny_target.config(
        max_model_len=112,
        max_num_seqs=data.draw(st.integers(1, 16), "max_num_seqs"),
        max_num_batched_tokens=data.draw(st.integers(16, 80), "max_num_batched_tokens"),
        block_size=block_size,
        num_blocks=1 + needed + data.draw(st.integers(0, 3 * needed), "spare blocks"),
        enable_prefix_caching=data.draw(st.booleans(), "enable_prefix_caching"),
    )
    dictated = scripted(expected, RATES[kind], seed, block_size) if kind in RATES else None
    bench = tiny_target.bench(config, RandomK(seed, 8), dictated, speculative=speculative.get(kind))
    chance = random.Random(seed)
    answers: dict[str, Answer] = {}
    requests: dict[str, tuple[list[int], list[int]]] = {}
    """Prompt and expected answer."""
    aborted: set[str] = set()

    def step() -> None:
        for output in bench.engine.step():
            answers[output.request_id].token_ids += output.token_ids
            answers[output.request_id].outputs.append(output)

    for index in range(data.draw(st.integers(1, 16), "requests")):
        request_id = str(index)
        prompt, length = chance.choice(PROMPTS), chance.randint(1, LONGEST)
        known: list[int] = []
        if chance.random() < 0.3:
            # A conversation goes on: the prompt holds an answer, which may be in the cache.
            known = expected(prompt, chance.randint(0, LONGEST - length))
        prompt_and_answer = [*prompt, *expected(prompt, len(known) + length)]
        requests[request_id] = (prompt_and_answer[:-length], prompt_and_answer[-length:])
        answers[request_id] = Answer()
        limit = chance.choice([None, None, 0, 1, 3])
        prompt, answer = requests[request_id]
        bench.engine.add_request(greedy_request(request_id, prompt, len(answer), num_speculative_tokens=limit))
        for _ in range(chance.choice([0, 0, 1, 3])):
            step()
        if chance.random() < 0.15:
            victim = str(chance.randrange(index + 1))
            bench.engine.abort(victim)
            aborted.add(victim)
    run_steps(bench.engine, answers)

    for request_id, (_, right) in requests.items():
        answer = answers[request_id]
        if answer.outputs and answer.finish_reason:
            assert answer.token_ids == right
            assert answer.finish_reason == "length"
            assert answer.last.num_output_tokens == len(right)
        else:
            assert request_id in aborted
            assert answer.token_ids == right[: len(answer.token_ids)]
    stats = bench.engine.stats()
    assert stats.free_blocks == stats.total_blocks
    assert stats.running == stats.waiting == 0
    assert stats.prefix_cache_hits <= stats.prefix_cache_queries
    # Without a step everybody was aborted while waiting.
    assert (stats.prefix_cache_queries > 0) == (config.enable_prefix_caching and stats.steps > 0)
    assert stats.generated_tokens == sum(len(answer.token_ids) for answer in answers.values())


def test_the_model_s_end_token_ends_unless_ignored(tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM) -> None:
    chance = random.Random(0)
    for _ in range(2000):
        prompt = tuple(chance.randrange(END) for _ in range(2))
        tokens = list(greedy(tiny_reference, prompt, 3))
        if END in tokens:
            break
    else:
        raise AssertionError("no prompt reaches the end token")
    tokens = list(greedy(tiny_reference, prompt, 8))
    end = tokens.index(END) + 1
    for k in (0, 4):
        bench = tiny_target.bench(
            tiny_target.config(), FixedK(k), ScriptedDrafter(continuation([(*prompt, *tokens)], VOCAB))
        )
        ended = greedy_request("ended", prompt, 8, ignore_eos=False)
        answers = generate(bench.engine, [ended, greedy_request("ignored", prompt, 8)])
        assert (answers["ended"].token_ids, answers["ended"].finish_reason) == (tokens[:end], "stop")
        assert (answers["ignored"].token_ids, answers["ignored"].finish_reason) == (tokens, "length")
        assert "<eos>" not in answers["ended"].text


@pytest.mark.parametrize("k", [0, 3, 8])
def test_generation_ends_at_max_model_len(k: int, tiny_target: TinyTarget, expected: Greedy) -> None:
    prompt = PROMPTS[4]
    config = tiny_target.config(max_model_len=40)
    bench = tiny_target.bench(config, FixedK(k), scripted(expected, 1.0))
    answer = generate(bench.engine, [greedy_request("a", prompt, 1000)])["a"]
    assert answer.token_ids == expected(prompt, 40 - len(prompt))
    assert answer.finish_reason == "length"
    assert answer.last.num_prompt_tokens + answer.last.num_output_tokens == 40


def test_a_prompt_that_is_too_long_is_refused_and_the_next_one_served(
    tiny_target: TinyTarget, expected: Greedy
) -> None:
    bench = tiny_target.bench(tiny_target.config(max_model_len=40), FixedK(0))
    for length in (40, 60):
        with pytest.raises(RequestError) as error:
            bench.engine.add_request(greedy_request("long", PROMPTS[-1][:length], 4))
        assert error.value.message == (
            f"the prompt has {length} tokens, but this model's maximum context length is 40 tokens, "
            "prompt and completion together"
        )
        assert (error.value.param, error.value.code) == ("prompt", "context_length_exceeded")
    assert not bench.engine.has_work
    longest = PROMPTS[-1][:39]
    answers = generate(bench.engine, [greedy_request("longest", longest, 4), greedy_request("short", PROMPTS[3], 4)])
    assert len(answers["longest"].token_ids) == 1
    assert answers["longest"].finish_reason == "length"
    assert answers["short"].token_ids == expected(PROMPTS[3], 4)


@pytest.mark.parametrize(("prompt", "param"), [((), "prompt"), ((5, VOCAB), "prompt"), ((-1, 5), "prompt")])
def test_a_prompt_that_the_model_cannot_read_is_refused(
    prompt: tuple[int, ...], param: str, tiny_target: TinyTarget, expected: Greedy
) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(0))
    with pytest.raises(RequestError) as error:
        bench.engine.add_request(greedy_request("bad", prompt, 4))
    assert error.value.param == param
    assert generate(bench.engine, [greedy_request("a", PROMPTS[3], 4)])["a"].token_ids == expected(PROMPTS[3], 4)


def test_a_request_id_in_use_is_refused(tiny_target: TinyTarget, expected: Greedy) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(0))
    bench.engine.add_request(greedy_request("a", PROMPTS[3], 4))
    with pytest.raises(RequestError, match="request id 'a' is in use"):
        bench.engine.add_request(greedy_request("a", PROMPTS[4], 4))
    answers = {"a": Answer()}
    run_steps(bench.engine, answers)
    assert answers["a"].token_ids == expected(PROMPTS[3], 4)
    assert generate(bench.engine, [greedy_request("a", PROMPTS[4], 4)])["a"].token_ids == expected(PROMPTS[4], 4)


def sampled(request_id: str, prompt: tuple[int, ...], seed: int | None, **sampling: object) -> GenerationRequest:
    fields: dict[str, object] = {"temperature": 0.9, "max_tokens": 24, "ignore_eos": True, "seed": seed}
    return GenerationRequest(request_id, prompt, SamplingParams(**(fields | sampling)))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("sampling", [{}, {"top_k": 20}, {"top_p": 0.8, "temperature": 1.3}, {"min_p": 0.1}])
def test_the_same_seed_gives_the_same_text_for_every_k(
    sampling: dict[str, object], tiny_target: TinyTarget, speculative: Speculative
) -> None:
    requests = [sampled(str(seed), PROMPTS[3], seed, **sampling) for seed in range(6)]
    plain = generate(tiny_target.bench(tiny_target.config(), FixedK(0)).engine, requests)
    texts = {tuple(answer.token_ids) for answer in plain.values()}
    assert len(texts) == 6, "seeds differ"
    known = [(*PROMPTS[3], *tokens) for tokens in texts]
    rule = continuation(known, VOCAB, 0.7)
    dictated = [(policy, ScriptedDrafter(rule), None) for policy in (FixedK(1), FixedK(3), RandomK(8, 8))]
    for policy, drafter, method in [*dictated, *((RandomK(8, 5), None, one) for one in speculative.values())]:
        bench = tiny_target.bench(tiny_target.config(), policy, drafter, speculative=method)
        answers = generate(bench.engine, requests)
        assert {key: a.token_ids for key, a in answers.items()} == {key: a.token_ids for key, a in plain.items()}


def test_requests_without_a_seed_differ(tiny_target: TinyTarget) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(0))
    answers = generate(bench.engine, [sampled(str(index), PROMPTS[3], None) for index in range(4)])
    assert len({tuple(answer.token_ids) for answer in answers.values()}) == 4


@pytest.mark.parametrize("top_k", [VOCAB, 2**31, 2**70])
def test_a_top_k_beyond_the_vocabulary_keeps_everything(top_k: int, tiny_target: TinyTarget) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(0))
    requests = [
        sampled("a", PROMPTS[3], 5),
        sampled("b", PROMPTS[3], 5, top_k=top_k),
        sampled("c", PROMPTS[3], 5, top_k=2),
    ]
    answers = generate(bench.engine, requests)
    assert answers["a"].token_ids == answers["b"].token_ids != answers["c"].token_ids


@pytest.mark.parametrize("seed", [-1, 2**31, 2**63 - 1, -(2**63), 10**30])
def test_any_integer_is_a_seed(seed: int, tiny_target: TinyTarget) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(0))
    answers = generate(
        bench.engine, [sampled("a", PROMPTS[3], seed), sampled("b", PROMPTS[3], seed), sampled("c", PROMPTS[3], 2)]
    )
    assert answers["a"].token_ids == answers["b"].token_ids != answers["c"].token_ids


def test_warm_up_leaves_no_trace(tiny_target: TinyTarget, tiny_head: Path, expected: Greedy) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(3), head=tiny_head)
    before = bench.engine.stats()
    count = bench.engine.warm_up()
    assert bench.engine.stats() == replace(before, programs=count)
    answers = generate(bench.engine, [greedy_request(str(i), prompt, 20) for i, prompt in enumerate(PROMPTS[:4])])
    assert [answers[str(i)].token_ids for i in range(4)] == [expected(prompt, 20) for prompt in PROMPTS[:4]]


def test_stats_follow_the_requests(tiny_target: TinyTarget) -> None:
    bench = tiny_target.bench(tiny_target.config(max_num_seqs=2), FixedK(0))
    total = bench.engine.stats().total_blocks
    for index in range(3):
        bench.engine.add_request(greedy_request(str(index), PROMPTS[4], 3))
    assert (bench.engine.stats().running, bench.engine.stats().waiting) == (0, 3)
    bench.engine.step()
    stats = bench.engine.stats()
    assert (stats.running, stats.waiting, stats.steps, stats.generated_tokens) == (2, 1, 1, 2)
    assert stats.free_blocks == total - 2 * 3
    assert stats.busy_seconds > 0
    bench.engine.abort("1")
    bench.engine.abort("2")
    bench.engine.abort("unknown")
    assert (bench.engine.stats().running, bench.engine.stats().waiting) == (1, 0)
    assert bench.engine.stats().free_blocks == total - 3


def test_stats_tell_of_decoding(tiny_target: TinyTarget, expected: Greedy) -> None:
    bench = tiny_target.bench(tiny_target.config(max_num_batched_tokens=16), FixedK(2), scripted(expected, 1.0))
    engine = bench.engine
    engine.add_request(greedy_request("short", PROMPTS[2], 10))
    engine.add_request(greedy_request("long", PROMPTS[9], 10))
    assert engine.stats().waiting_prompt_tokens == 3 + 34
    engine.step()
    # The short prompt, and what the budget has left for the long one.
    first = engine.stats()
    assert (first.waiting_prompt_tokens, first.decode_tokens, first.decode_seconds) == (34 - 13, 0, 0)
    outputs = engine.step()
    second = engine.stats()
    assert second.decode_tokens == sum(len(output.token_ids) for output in outputs if output.request_id == "short") == 3
    assert second.decode_sequence_seconds == second.decode_seconds > 0
    assert second.num_speculative_tokens == 2
    while engine.has_work:
        engine.step()
    last = engine.stats()
    # Each one's first token comes with its prompt.
    assert last.decode_tokens == 2 * 9
    assert last.decode_seconds < last.decode_sequence_seconds < 2 * last.decode_seconds
    assert last.waiting_prompt_tokens == 0
