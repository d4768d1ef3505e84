"""Log-probabilities of every emitted token, and of the prompt: those of the target's raw logits, whatever K."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from transformers import LlamaForCausalLM

from replicas.request import MAX_LOGPROBS, GenerationRequest, SamplingParams, TokenLogprobs
from tests.reference.decoding import Continuation, full_logits, sampled
from tests.reference.hand_built_engine import Answer, TinyTarget, generate
from tests.reference.k_policies import FixedK
from tests.reference.rejection import Floats, softmax
from tests.reference.scripted_drafter import ScriptedDrafter, continuation
from tests.reference.tiny_checkpoints import END, VOCAB

COUNT = 20
TOLERANCE = 1e-4
"""Of float32 logits of about 10, summed in another order by transformers or in a batch of another shape."""
PROMPTS = tuple(tuple(random.Random(length).choices(range(END), k=length)) for length in (1, 4, 11, 25, 40))
SAMPLING: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0, logprobs=5),
    "chosen only": SamplingParams(temperature=0.0, logprobs=0),
    "nothing": SamplingParams(temperature=0.0),
    "seeded": SamplingParams(temperature=0.7, top_k=30, seed=4, logprobs=MAX_LOGPROBS, prompt_logprobs=2),
    "penalised": SamplingParams(
        temperature=0.0, repetition_penalty=1.5, presence_penalty=2.0, logit_bias=((9, 8.0),), logprobs=1
    ),
}


def requests(**changes: object) -> dict[str, GenerationRequest]:
    found: dict[str, GenerationRequest] = {}
    for (name, sampling), prompt in zip(SAMPLING.items(), PROMPTS, strict=True):
        fields = {field: getattr(sampling, field) for field in SamplingParams.__slots__}
        fields |= {"max_tokens": COUNT, "ignore_eos": True} | changes
        found[name] = GenerationRequest(name, prompt, SamplingParams(**fields))
    return found


@pytest.fixture(scope="module")
def expected(tiny_reference: LlamaForCausalLM) -> dict[str, Continuation]:
    return {
        name: sampled(tiny_reference, request.prompt_token_ids, COUNT, request.sampling)
        for name, request in requests().items()
    }


def told(answer: Answer) -> list[TokenLogprobs]:
    return [logprobs for output in answer.outputs for logprobs in output.logprobs or ()]


def check(found: Sequence[TokenLogprobs], tokens: Sequence[int], wanted: Sequence[Floats], count: int) -> None:
    assert [one.token_id for one in found] == list(tokens)
    for one, row in zip(found, wanted, strict=True):
        assert one.logprob == pytest.approx(row[one.token_id], abs=TOLERANCE)
        assert len(one.top) == count
        best = np.sort(row)[::-1][:count]
        assert [value for _, value in one.top] == pytest.approx(best, abs=TOLERANCE)
        assert [row[token] for token, _ in one.top] == pytest.approx(best, abs=TOLERANCE)
        assert len({token for token, _ in one.top}) == count


@pytest.mark.parametrize("k", range(9))
def test_logprobs_of_every_token_are_the_references_for_every_k(
    k: int, tiny_target: TinyTarget, expected: dict[str, Continuation]
) -> None:
    known = [(*request.prompt_token_ids, *expected[name].token_ids) for name, request in requests().items()]
    bench = tiny_target.bench(tiny_target.config(), FixedK(k), ScriptedDrafter(continuation(known, VOCAB, 0.8)))
    answers = generate(bench.engine, requests().values())
    for name, answer in answers.items():
        assert answer.token_ids == expected[name].token_ids
        count = SAMPLING[name].logprobs
        if count is None:
            assert [output.logprobs for output in answer.outputs] == [None] * len(answer.outputs)
            continue
        check(told(answer), answer.token_ids, expected[name].logprobs, count)
        for output in answer.outputs:
            assert output.logprobs is not None
            assert tuple(one.token_id for one in output.logprobs) == output.token_ids


def test_they_are_of_the_raw_logits(expected: dict[str, Continuation]) -> None:
    """The reference's texts are such that a mistake would show: the chosen token often is not the most likely one."""
    for name in ("seeded", "penalised"):
        passed_over = [
            int(np.argmax(row)) != token
            for token, row in zip(expected[name].token_ids, expected[name].logprobs, strict=True)
        ]
        assert sum(passed_over) > 3


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("at", [0, 3, 7, 12])
def test_they_are_cut_where_the_tokens_are(
    at: int, k: int, tiny_target: TinyTarget, expected: dict[str, Continuation]
) -> None:
    tokens = expected["greedy"].token_ids
    assert tiny_target.codec is not None
    piece = tiny_target.codec.decode([tokens[at]])
    end = tokens.index(tokens[at]) + 1
    prompt = requests()["greedy"].prompt_token_ids
    rule = continuation([(*prompt, *tokens)], VOCAB)
    for stop in ({"stop_token_ids": (tokens[at],)}, {"stop": (piece,)}, {"max_tokens": at + 1}):
        bench = tiny_target.bench(tiny_target.config(), FixedK(k), ScriptedDrafter(rule))
        answer = generate(bench.engine, [requests(**stop)["greedy"]])["greedy"]
        assert len(answer.token_ids) <= (at + 1 if "max_tokens" in stop else end)
        assert answer.token_ids == tokens[: len(answer.token_ids)]
        assert answer.last.num_output_tokens == len(answer.token_ids)
        check(told(answer), answer.token_ids, expected["greedy"].logprobs[: len(answer.token_ids)], 5)


def prompt_rows(reference: LlamaForCausalLM, prompt: tuple[int, ...]) -> list[Floats]:
    logits = full_logits(reference, prompt).double().numpy()
    return [np.log(softmax(row, 1.0)) for row in logits[:-1]]


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize("num_blocks", [17, 20, 120])
def test_prompt_logprobs_are_the_references(
    num_blocks: int, chunk: int, k: int, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM
) -> None:
    """Whole prompts and chunks; in the small pools, sequences are preempted and computed again."""
    config = tiny_target.config(max_num_batched_tokens=chunk, max_model_len=64, num_blocks=num_blocks)
    rows = cache(lambda prompt: prompt_rows(tiny_reference, prompt))
    drafter = ScriptedDrafter(lambda tokens, count: [0] * count)
    bench = tiny_target.bench(config, FixedK(k), drafter, ks=range(k + 1))
    wanted = list(requests(prompt_logprobs=3).values())
    wanted.append(GenerationRequest("unasked", PROMPTS[2], SamplingParams(temperature=0.0, max_tokens=3)))
    answers = generate(bench.engine, wanted)
    for request in wanted:
        first, *later = answers[request.request_id].outputs
        assert all(output.prompt_logprobs is None for output in later)
        if request.request_id == "unasked":
            assert first.prompt_logprobs is None
            continue
        assert first.prompt_logprobs is not None
        begin, *rest = first.prompt_logprobs
        assert begin is None
        found = [one for one in rest if one is not None]
        check(found, request.prompt_token_ids[1:], rows(request.prompt_token_ids), 3)
    parts = [part for plan, _ in bench.runner.steps for batch in plan.batches for part in batch.sequences]
    preempted = sum(part.start == 0 for part in parts) > len(wanted)
    assert preempted == (num_blocks < 120)


def test_a_prompt_that_is_preempted_halfway_is_told_once(
    tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM
) -> None:
    # The long prompt, in chunks of 16, takes the pool's last blocks before the short one grows.
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, prompt_logprobs=3)
    short = GenerationRequest("short", (1, 2, 3), sampling)
    long = GenerationRequest("long", PROMPTS[4] + PROMPTS[3] + (5, 6), sampling)
    config = tiny_target.config(max_num_batched_tokens=16, max_model_len=72, num_blocks=19)
    bench = tiny_target.bench(config, FixedK(0))
    answer = generate(bench.engine, [short, long])["long"]
    first = answer.outputs[0].prompt_logprobs
    assert first is not None
    assert first[0] is None
    tokens = long.prompt_token_ids
    check([one for one in first if one is not None], tokens[1:], prompt_rows(tiny_reference, tokens), 3)
    parts = [part for plan, _ in bench.runner.steps for batch in plan.batches for part in batch.sequences]
    chunks = [(part.start, part.next_prompt_token is None) for part in parts if part.request_id == "long"]
    again = chunks.index((0, False), 1)
    assert not any(is_last for _, is_last in chunks[:again])
