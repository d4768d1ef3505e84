"""Penalties, logit_bias and min_tokens: with and without speculation the tokens of a plain reference."""

import random
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from replicas.errors import RequestError
from replicas.request import GenerationRequest, SamplingParams
from replicas.scheduling.token_choice import MAX_BIASES
from tests.reference.decoding import sampled
from tests.reference.hand_built_engine import TinyTarget, generate
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.scripted_drafter import ScriptedDrafter, continuation
from tests.reference.tiny_checkpoints import END, VOCAB

COUNT = 26
PROMPTS = tuple(tuple(random.Random(length).randrange(END) for _ in range(length)) for length in (2, 5, 9, 17, 30))
# Biased towards a few tokens, so that texts repeat themselves and penalties decide.
FEW = tuple((token, 9.0) for token in (3, 50, 51, 120, 190))
ADJUSTED: dict[str, dict[str, object]] = {
    "presence": {"presence_penalty": 1.5, "logit_bias": FEW},
    "frequency": {"frequency_penalty": 0.8, "logit_bias": FEW},
    "negative frequency": {"frequency_penalty": -0.7},
    "repetition": {"repetition_penalty": 1.3, "logit_bias": FEW},
    "repetition below 1": {"repetition_penalty": 0.8},
    "all": {"presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.15, "logit_bias": FEW},
    "bias": {"logit_bias": ((7, 12.5), (8, -100.0), (END, -3.0))},
    "forced": {"logit_bias": ((44, 100.0),)},
    "min_tokens": {"min_tokens": 11, "stop_token_ids": (5, 6), "logit_bias": ((END, 30.0), (5, 29.0))},
    "none": {},
}
WAYS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "min_p": 0.01},
}


def requests(way: str) -> list[GenerationRequest]:
    """Every adjustment on its own prompt, in one batch: some rows of it have none."""
    found: list[GenerationRequest] = []
    for index, (name, adjustment) in enumerate(ADJUSTED.items()):
        fields: dict[str, object] = {"max_tokens": COUNT, "ignore_eos": "min_tokens" not in adjustment, "seed": index}
        sampling = SamplingParams(**(fields | WAYS[way] | adjustment))  # pyright: ignore[reportArgumentType]
        found.append(GenerationRequest(name, PROMPTS[index % len(PROMPTS)], sampling))
    return found


@pytest.fixture(scope="module")
def expected(tiny_reference: LlamaForCausalLM) -> dict[str, dict[str, list[int]]]:
    """Tokens of every request by transformers and NumPy, up to and with the first stop token."""
    texts: dict[str, dict[str, list[int]]] = {}
    for way in WAYS:
        texts[way] = {}
        for request in requests(way):
            sampling = request.sampling
            stops = {*sampling.stop_token_ids} | (set() if sampling.ignore_eos else {END})
            tokens = sampled(tiny_reference, request.prompt_token_ids, COUNT, sampling, stops).token_ids
            end = next((index + 1 for index, token in enumerate(tokens) if token in stops), COUNT)
            texts[way][request.request_id] = tokens[:end]
    return texts


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("k", range(9))
def test_adjusted_tokens_are_the_references_for_every_k(
    k: int, way: str, tiny_target: TinyTarget, expected: dict[str, dict[str, list[int]]]
) -> None:
    known = [(*request.prompt_token_ids, *expected[way][request.request_id]) for request in requests(way)]
    bench = tiny_target.bench(
        tiny_target.config(max_num_seqs=10), FixedK(k), ScriptedDrafter(continuation(known, VOCAB, 0.85))
    )
    answers = generate(bench.engine, requests(way))
    assert {name: answer.token_ids for name, answer in answers.items()} == expected[way]
    if k:
        # Runs of several accepted drafts, so that later positions did depend on the drafts before them.
        assert max(len(output.token_ids) for answer in answers.values() for output in answer.outputs) == k + 1


def test_the_adjustments_decide_these_texts(
    expected: dict[str, dict[str, list[int]]], tiny_reference: LlamaForCausalLM
) -> None:
    texts = expected["greedy"]
    assert texts["forced"] == [44] * COUNT
    assert len(texts["min_tokens"]) == 12
    assert texts["min_tokens"][-1] in (END, 5)
    for request in requests("greedy"):
        bias_alone = SamplingParams(temperature=0.0, logit_bias=request.sampling.logit_bias)
        tokens = sampled(tiny_reference, request.prompt_token_ids, COUNT, bias_alone).token_ids
        assert (texts[request.request_id] == tokens) == (request.request_id in ("bias", "forced", "none"))


def test_chunks_preemption_and_a_changing_k_change_no_adjusted_token(
    tiny_target: TinyTarget, tiny_head: Path, expected: dict[str, dict[str, list[int]]]
) -> None:
    # Without the prefix cache, so that a preempted sequence begins at position 0 again.
    config = tiny_target.config(
        max_model_len=64,
        max_num_seqs=6,
        max_num_batched_tokens=16,
        num_blocks=1 + 24,
        enable_prefix_caching=False,
    )
    for way in WAYS:
        for seed in range(3):
            bench = tiny_target.bench(config, RandomK(seed, 8), head=tiny_head)
            answers = generate(bench.engine, requests(way))
            assert {name: answer.token_ids for name, answer in answers.items()} == expected[way]
            starts = [
                part.request_id
                for plan, _ in bench.runner.steps
                for batch in plan.batches
                for part in batch.sequences
                if part.start == 0
            ]
            assert len(starts) > len(ADJUSTED), "the pool is small enough to preempt"


def test_a_stop_string_below_min_tokens_is_text(tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM) -> None:
    assert tiny_target.codec is not None
    # Token 33 prints as "B": the forced text is Bs alone, and "BB" is complete at every token from the second on.
    for min_tokens, kept in ((0, 2), (1, 2), (5, 6), (9, 10)):
        for k in (0, 3):
            sampling = SamplingParams(
                temperature=0.0, max_tokens=12, min_tokens=min_tokens, stop=("BB",), logit_bias=((33, 100.0),)
            )
            rule = continuation([(*PROMPTS[1], *[33] * 20)], VOCAB)
            bench = tiny_target.bench(tiny_target.config(), FixedK(k), ScriptedDrafter(rule))
            answer = generate(bench.engine, [GenerationRequest("a", PROMPTS[1], sampling)])["a"]
            assert answer.token_ids == [33] * kept
            assert (answer.text, answer.finish_reason) == ("B" * (kept - 2), "stop")


@pytest.mark.parametrize(
    ("sampling", "param", "message"),
    [
        ({"logit_bias": ((3, 1.0), (VOCAB, 1.0))}, "logit_bias", "logit_bias holds token 200; this model's tokens are"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias", "logit_bias holds token -1"),
        ({"logit_bias": ((3, 1.0),) * (MAX_BIASES + 1)}, "logit_bias", f"1025 together; allowed: {MAX_BIASES}"),
        ({"logprobs": 21}, "logprobs", "logprobs is 21; allowed: 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "prompt_logprobs is -1; allowed: 0 to 20"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    sampling: dict[str, object], param: str, message: str, tiny_target: TinyTarget
) -> None:
    bench = tiny_target.bench(tiny_target.config(), FixedK(0))
    with pytest.raises(RequestError, match=message) as error:
        bench.engine.add_request(GenerationRequest("a", PROMPTS[0], SamplingParams(**sampling)))  # pyright: ignore[reportArgumentType]
    assert error.value.param == param
    assert not bench.engine.has_work
