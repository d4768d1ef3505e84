"""vLLM behind our protocol, on a fake of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicas.errors import ConfigError, EngineDeadError, RequestError
from replicas.request import Acceptance, GenerationRequest, Grammar, RequestOutput, SamplingParams
from replicas.scheduling.k_policy import DraftFeedback, KPolicy
from replicas.vllm_engine.config import VllmConfig
from replicas.vllm_engine.engine import VllmEngine, build_vllm_engine
from serve_app.k_policy import FixedK
from tests.replicas.vllm_engine.fake_vllm import FakeVllm

SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 3}


class Bench:
    def __init__(self, folder: Path, library: FakeVllm, policy: KPolicy | None = None, **fields: Any) -> None:
        fields = {"max_model_len": 32, "speculative_config": SPECULATIVE} | fields
        self.library = library
        config = VllmConfig.model_validate({"model": str(folder), "device": "cpu"} | fields)
        policy = policy or FixedK(3 if config.speculative_config else 0)
        self.engine: VllmEngine = build_vllm_engine(config, policy, library)

    def run(self, prompt: tuple[int, ...] = (1, 2, 3, 4), **sampling: Any) -> list[RequestOutput]:
        async def collect() -> list[RequestOutput]:
            request = GenerationRequest("r", prompt, SamplingParams(**sampling))
            return [output async for output in self.engine.generate(request)]

        return asyncio.run(collect())


@pytest.fixture
def bench(tiny_folder: Path) -> Iterator[Bench]:
    made = Bench(tiny_folder, FakeVllm())
    yield made
    made.engine.shutdown()


def test_an_output_a_step_with_its_counts(bench: Bench) -> None:
    first, second, last = bench.run()
    assert [one.text for one in (first, second, last)] == ["Hel", "lo ", "you"]
    assert [one.token_ids for one in (first, second, last)] == [(5,), (6, 7, 8), (9, 10)]
    assert [one.num_output_tokens for one in (first, second, last)] == [1, 4, 6]
    assert [one.finish_reason for one in (first, second, last)] == [None, None, "stop"]
    assert {(one.num_prompt_tokens, one.num_cached_tokens) for one in (first, second, last)} == {(4, 2)}
    assert last.acceptance == Acceptance(steps=2, drafted=6, accepted=3, accepted_by_position=(2, 1, 0))
    assert last.acceptance.mean_acceptance_length == 2.5


def test_without_drafts_every_token_but_the_first_is_a_step(tiny_folder: Path) -> None:
    plain = Bench(tiny_folder, FakeVllm(lambda *_: [("a", [5]), ("b", [6]), ("c", [7])]), speculative_config=None)
    assert plain.run()[-1].acceptance == Acceptance(steps=2)
    plain.engine.shutdown()


def test_logprobs_best_first_without_the_chosen_one(bench: Bench) -> None:
    [first, *_] = bench.run(logprobs=2)
    assert first.logprobs is not None
    [score] = first.logprobs
    assert (score.token_id, score.logprob, score.top) == (5, -1.5, ((65, -0.25), (66, -0.75)))
    assert bench.run(logprobs=0)[0].logprobs is not None
    assert bench.run()[0].logprobs is None


def test_what_the_request_says_reaches_vllm(bench: Bench) -> None:
    bench.run(temperature=0.5, seed=7, stop=("x",), stop_token_ids=(9,), logit_bias=((3, 1.5),), max_tokens=4)
    [(prompt, params, request_id)] = bench.library.engine.requests
    assert (prompt, request_id) == ({"prompt_token_ids": [1, 2, 3, 4]}, "r")
    assert (params.temperature, params.seed, params.max_tokens) == (0.5, 7, 4)
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (["x"], [9], {3: 1.5})


@pytest.mark.parametrize(
    ("grammar", "structure"),
    [
        (
            Grammar("json_schema", '{"type": "object"}', "response_format"),
            {"json": '{"type": "object"}', "disable_any_whitespace": True},
        ),
        (Grammar("regex", "[a-z]+", "guided_regex"), {"regex": "[a-z]+"}),
        (Grammar("choice", '["a", "b"]', "guided_choice"), {"choice": ["a", "b"]}),
    ],
)
def test_a_grammar_reaches_vllm(bench: Bench, grammar: Grammar, structure: dict[str, Any]) -> None:
    bench.run(grammar=grammar)
    assert bench.library.engine.requests[0][1].structured_outputs == structure


@pytest.mark.parametrize(
    ("prompt", "sampling", "param", "words"),
    [
        ((), {}, "prompt", "the prompt has no tokens"),
        ((1,) * 32, {}, "prompt", "maximum context length is 32 tokens"),
        ((1, 200), {}, "prompt", "token 200; this model's tokens are 0 to 199"),
        ((1,), {"logit_bias": ((200, 1.0),)}, "logit_bias", "this model's tokens are 0 to 199"),
        ((1,), {"logprobs": 21}, "logprobs", "allowed: 0 to 20"),
        ((1,), {"num_speculative_tokens": 0}, "speculation", "one K for all requests"),
        ((1,), {"min_p": 0.1}, "min_p", "speculative decoding"),
        ((1,), {"grammar": Grammar("regex", "(a", "guided_regex")}, "guided_regex", "Regex parsing error"),
    ],
)
def test_a_refusal_names_the_parameter_and_reaches_no_engine(
    bench: Bench, prompt: tuple[int, ...], sampling: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        bench.run(prompt, **sampling)
    assert caught.value.param == param
    assert bench.library.engine.requests == []


def test_closing_aborts(tiny_folder: Path) -> None:
    bench = Bench(tiny_folder, FakeVllm(lambda *_: [("a", [5]), None]))
    loop = bench.engine._loop

    async def nothing() -> None:
        pass

    async def leave() -> None:
        stream = bench.engine.generate(GenerationRequest("r", (1,), SamplingParams()))
        await stream.__anext__()
        assert bench.library.engine.running == 1
        await stream.aclose()
        # vLLM's loop has carried out what came before this.
        for _ in range(3):
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(nothing(), loop))
        assert bench.library.engine.running == 0

    asyncio.run(leave())
    bench.engine.shutdown()


def test_any_loop_may_call_and_vllm_sees_one(bench: Bench) -> None:
    bench.run()
    bench.run()
    assert bench.library.engine.loops == {bench.engine._loop}


def test_a_dead_core_is_told_and_health_fails(tiny_folder: Path) -> None:
    bench = Bench(tiny_folder, FakeVllm(lambda *_: [("a", [5]), RuntimeError("dead")]))
    with pytest.raises(EngineDeadError, match="core died"):
        bench.run()
    bench.engine.check_health()
    bench.library.engine.errored = True
    with pytest.raises(EngineDeadError, match="vLLM's core process failed"):
        bench.engine.check_health()
    bench.engine.shutdown()


def test_shutdown_ends_requests_and_vllm(tiny_folder: Path) -> None:
    bench = Bench(tiny_folder, FakeVllm(lambda *_: [("a", [5]), None]))

    async def wait() -> None:
        stream = bench.engine.generate(GenerationRequest("r", (1,), SamplingParams()))
        await stream.__anext__()
        await asyncio.to_thread(bench.engine.shutdown)
        with pytest.raises(EngineDeadError, match="it was shut down"):
            await stream.__anext__()

    asyncio.run(wait())
    assert bench.library.engine.was_shut_down
    with pytest.raises(EngineDeadError):
        bench.engine.check_health()
    bench.engine.shutdown()


def test_figures_follow_the_steps(bench: Bench) -> None:
    assert (bench.engine.stats().free_blocks, bench.engine.stats().steps) == (40, 0)
    bench.run()
    stats = bench.engine.stats()
    assert (stats.steps, stats.generated_tokens, stats.free_blocks, stats.total_blocks) == (3, 6, 30, 40)
    assert stats.prompt_tokens == 4
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (8, 4)
    assert (stats.verify_steps, stats.drafted_tokens, stats.accepted_tokens, stats.k_in_force) == (2, 6, 3, 3)


def test_the_policy_hears_of_every_step_that_verified_drafts(tiny_folder: Path) -> None:
    heard: list[DraftFeedback] = []

    class Listening(FixedK):
        def observe(self, feedback: DraftFeedback) -> None:
            heard.append(feedback)

    for speculative, expected in ((SPECULATIVE, [(1, 1, 0), (1, 0, 0)]), (None, [])):
        heard.clear()
        bench = Bench(tiny_folder, FakeVllm(), Listening(3), speculative_config=speculative)
        bench.run()
        bench.engine.shutdown()
        # The first step is the prompt's.
        assert heard == [DraftFeedback(1, (1, 1, 1), accepted) for accepted in expected]


def test_a_start_that_fails_says_why_and_leaves_no_thread(tiny_folder: Path) -> None:
    import threading

    before = threading.active_count()
    with pytest.raises(ConfigError, match="vLLM does not start: no"):
        Bench(tiny_folder, FakeVllm(refused=ConfigError("vLLM does not start: no")))
    assert threading.active_count() == before
