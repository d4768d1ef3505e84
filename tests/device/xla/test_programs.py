"""Whole engines on XLA's CPU client: the CPU backend's tokens, one program a bucket, one execute a step."""

from collections.abc import Hashable, Iterable
from pathlib import Path

import pytest

from replicas.config import EngineConfig
from replicas.request import GenerationRequest, SamplingParams
from tests.device.xla.watched_engine import Counts, watch
from tests.reference.hand_built_engine import Answer, TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK

PROMPTS = {"short": (5, 9, 40), "long": tuple(range(30, 52)), "late": (7,) * 9}


def config(target: TinyTarget, **changes: object) -> EngineConfig:
    """Few buckets: one context, one chunk, batches of 1 and 2."""
    return target.config(**({"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 16} | changes))


def tokens_of(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.token_ids for name, answer in answers.items()}


def greedy() -> Iterable[GenerationRequest]:
    """Three requests, of which one waits; one ends at the longest length, where nothing is drafted any more."""
    lengths = {"short": 61, "long": 20, "late": 8}
    return [greedy_request(name, prompt, lengths[name]) for name, prompt in PROMPTS.items()]


@pytest.fixture(scope="module")
def known() -> set[Hashable]:
    """Programs that XLA has compiled: those of two engines are the same where their names are."""
    return set()


@pytest.mark.parametrize("k", range(6))
def test_greedy_tokens_programs_and_memory(
    k: int, on_cpu: TinyTarget, on_xla: TinyTarget, head: Path, known: set[Hashable]
) -> None:
    plain = generate(on_cpu.bench(config(on_cpu), FixedK(k), head=head).engine, greedy())
    bench = on_xla.bench(config(on_xla), FixedK(k), head=head)
    watched = watch(bench.runner)
    before = Counts.now()
    answers = generate(bench.engine, greedy())
    after = Counts.now()

    assert tokens_of(answers) == tokens_of(plain)
    assert (answers["short"].last.acceptance.drafted > 0) == (k > 0)
    # One graph a program, one execute a call, one tensor read a call, nothing on the host.
    programs = set(watched.calls)
    assert after.compiled - before.compiled == len(programs - known)
    assert len(programs) == bench.runner.num_programs > 2
    known |= programs
    assert after.executed - before.executed == after.read - before.read == len(watched.calls)
    assert after.fallbacks == ()
    # The caches are updated where they lie.
    assert [len(pointers) for pointers in watched.pointers.values()] == [1, 1]
    assert watched.forbidden() == set()

    again = generate(bench.engine, greedy())
    last = Counts.now()
    assert tokens_of(again) == tokens_of(plain)
    assert last.compiled == after.compiled
    assert last.executed - after.executed == last.read - after.read == len(watched.calls) // 2


SAMPLED = {
    "temperature": SamplingParams(temperature=0.9, seed=3, max_tokens=12),
    "filters": SamplingParams(temperature=0.8, top_k=30, top_p=0.9, min_p=0.02, seed=4, max_tokens=12),
    "penalties": SamplingParams(
        temperature=0.0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, max_tokens=12, logprobs=3
    ),
    "biases": SamplingParams(
        temperature=1.1, logit_bias=((7, 3.0), (9, -100.0)), min_tokens=4, seed=8, max_tokens=12, prompt_logprobs=2
    ),
}


@pytest.mark.parametrize("k", [0, 3])
def test_sampled_tokens_and_logprobs(k: int, on_cpu: TinyTarget, on_xla: TinyTarget, head: Path) -> None:
    def requests() -> list[GenerationRequest]:
        return [GenerationRequest(name, PROMPTS["long"], params) for name, params in SAMPLED.items()]

    plain = generate(on_cpu.bench(config(on_cpu), FixedK(k), head=head).engine, requests())
    bench = on_xla.bench(config(on_xla), FixedK(k), head=head)
    watched = watch(bench.runner)
    answers = generate(bench.engine, requests())
    assert tokens_of(answers) == tokens_of(plain)
    assert watched.forbidden() == set()
    assert Counts.now().fallbacks == ()
    assert [len(pointers) for pointers in watched.pointers.values()] == [1, 1]
    for name, told in (("penalties", "logprobs"), ("biases", "prompt_logprobs")):
        found, wanted = (
            [entry for output in side[name].outputs for entry in getattr(output, told) or () if entry is not None]
            for side in (answers, plain)
        )
        assert len(found) == len(wanted) > 10
        assert [entry.token_id for entry in found] == [entry.token_id for entry in wanted]
        assert [entry.logprob for entry in found] == pytest.approx([entry.logprob for entry in wanted], abs=1e-4)
        assert [[token for token, _ in entry.top] for entry in found] == [
            [token for token, _ in entry.top] for entry in wanted
        ]


def test_after_warm_up_nothing_compiles(on_xla: TinyTarget, head: Path) -> None:
    bench = on_xla.bench(config(on_xla, max_num_seqs=1), FixedK(2), head=head, ks=(0, 2))
    before = Counts.now().compiled
    programs = bench.engine.warm_up()
    warm = Counts.now().compiled
    # Chunks and decoding, K of 0 and 2, each greedy or with everything, chunks with the prompt's logprobs or without.
    assert programs == 2 * (3 + 2)
    assert warm - before <= programs
    answers = generate(bench.engine, greedy())
    assert len(answers["short"].token_ids) == 61
    assert Counts.now().compiled == warm
    assert bench.engine.stats().programs_after_warm_up == 0
