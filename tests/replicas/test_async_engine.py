"""The engine behind asyncio: streams, aborts, errors, death."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager

import pytest

from replicas.async_engine import AsyncEngine
from replicas.engine import Engine, EngineStats
from replicas.errors import CheckpointError, EngineDeadError, RequestError
from replicas.scheduling.step_plan import StepPlan, StepResult
from tests.reference.hand_built_engine import Answer, Bench, TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK
from tests.reference.tiny_checkpoints import END

PROMPTS = [tuple(random.Random(length).choices(range(END), k=length)) for length in (4, 9, 20)]


@contextmanager
def running(bench: Bench) -> Generator[AsyncEngine]:
    engine = AsyncEngine(lambda: bench.engine)
    try:
        yield engine
    finally:
        engine.shutdown()


def new_bench(tiny_target: TinyTarget, **changes: object) -> Bench:
    return tiny_target.bench(tiny_target.config(**changes), FixedK(0))


async def collect(engine: AsyncEngine, request_id: str, prompt: tuple[int, ...], max_tokens: int) -> Answer:
    answer = Answer()
    async for output in engine.generate(greedy_request(request_id, prompt, max_tokens)):
        answer.token_ids += output.token_ids
        answer.text += output.text
        answer.outputs.append(output)
    return answer


async def until(engine: AsyncEngine, holds: Callable[[EngineStats], bool], seconds: float) -> EngineStats:
    """The first stats for which `holds`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds(engine.stats()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {engine.stats()}"
        await asyncio.sleep(0.005)
    return engine.stats()


def test_concurrent_streams_get_their_own_tokens(tiny_target: TinyTarget) -> None:
    requests = [greedy_request(str(i), prompt, 12 + i) for i, prompt in enumerate(PROMPTS)]
    expected = generate(new_bench(tiny_target).engine, requests)

    async def main(engine: AsyncEngine) -> list[Answer]:
        return await asyncio.gather(*(collect(engine, str(i), p, 12 + i) for i, p in enumerate(PROMPTS)))

    bench = new_bench(tiny_target)
    with running(bench) as engine:
        answers = asyncio.run(main(engine))
    for index, answer in enumerate(answers):
        assert answer.token_ids == expected[str(index)].token_ids
        assert answer.text == expected[str(index)].text
        assert [output.finish_reason for output in answer.outputs] == [None] * (11 + index) + ["length"]
    assert any(len(batch.sequences) > 1 for plan, _ in bench.runner.steps for batch in plan.batches), (
        "they shared steps"
    )


def test_callers_of_two_event_loops_share_an_engine(tiny_target: TinyTarget) -> None:
    with running(new_bench(tiny_target)) as engine:
        first = asyncio.run(collect(engine, "a", PROMPTS[0], 6))
        second = asyncio.run(collect(engine, "a", PROMPTS[0], 6))
    assert first.token_ids == second.token_ids
    assert len(first.token_ids) == 6


@pytest.mark.parametrize("way", ["close", "cancel"])
def test_leaving_a_stream_early_frees_its_blocks_within_a_second(way: str, tiny_target: TinyTarget) -> None:
    async def main(engine: AsyncEngine) -> None:
        whole = engine.stats().total_blocks
        stream = engine.generate(greedy_request("a", PROMPTS[2], 490))
        await anext(stream)
        assert engine.stats().free_blocks < whole
        if way == "close":
            await stream.aclose()
        else:
            waiting = asyncio.create_task(consume(stream))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        stats = await until(engine, lambda stats: stats.free_blocks == whole, 1.0)
        assert stats.running == 0
        assert stats.generated_tokens < 490
        assert len((await collect(engine, "b", PROMPTS[0], 5)).token_ids) == 5

    with running(new_bench(tiny_target, max_model_len=512)) as engine:
        asyncio.run(main(engine))


async def consume(stream: AsyncIterator[object]) -> None:
    async for _ in stream:
        pass


def test_leaving_a_request_that_still_waits(tiny_target: TinyTarget) -> None:
    async def main(engine: AsyncEngine) -> None:
        first = engine.generate(greedy_request("first", PROMPTS[0], 490))
        await anext(first)
        waiting = asyncio.create_task(consume(engine.generate(greedy_request("second", PROMPTS[1], 5))))
        await until(engine, lambda stats: stats.waiting == 1, 5.0)
        waiting.cancel()
        await until(engine, lambda stats: stats.waiting == 0, 1.0)
        await first.aclose()
        await until(engine, lambda stats: stats.free_blocks == stats.total_blocks, 1.0)

    with running(new_bench(tiny_target, max_model_len=512, max_num_seqs=1)) as engine:
        asyncio.run(main(engine))


def test_a_request_error_reaches_its_caller_alone(tiny_target: TinyTarget) -> None:
    async def main(engine: AsyncEngine) -> None:
        other = asyncio.create_task(collect(engine, "other", PROMPTS[0], 20))
        with pytest.raises(RequestError, match="the prompt has 40 tokens") as error:
            await collect(engine, "long", PROMPTS[2] * 2, 5)
        assert error.value.code == "context_length_exceeded"
        assert len((await other).token_ids) == 20
        assert len((await collect(engine, "next", PROMPTS[1], 5)).token_ids) == 5
        engine.check_health()

    with running(new_bench(tiny_target, max_model_len=40)) as engine:
        asyncio.run(main(engine))


def test_a_failing_step_ends_every_stream_and_the_engine(tiny_target: TinyTarget) -> None:
    bench = new_bench(tiny_target)
    bench.runner.fail_at = 6

    async def main(engine: AsyncEngine) -> None:
        streams = [collect(engine, str(index), prompt, 100) for index, prompt in enumerate(PROMPTS)]
        for result in await asyncio.gather(*streams, return_exceptions=True):
            assert isinstance(result, EngineDeadError)
            assert "the device is gone" in str(result)
        with pytest.raises(EngineDeadError, match=r"RuntimeError\('the device is gone'\)"):
            engine.check_health()
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(collect(engine, "late", PROMPTS[0], 5), 5)

    with running(bench) as engine:
        engine.check_health()
        asyncio.run(main(engine))
    assert len(bench.runner.steps) == 6


def test_a_step_that_does_not_end_ends_every_stream_and_those_that_it_kept_waiting(tiny_target: TinyTarget) -> None:
    bench = new_bench(tiny_target, step_timeout_s=0.2)
    execute, never, stuck = bench.runner.execute, threading.Event(), threading.Event()

    def hang(plan: StepPlan) -> StepResult:
        if len(bench.runner.steps) == 3:
            stuck.set()
            never.wait(60)
        return execute(plan)

    bench.runner.execute = hang

    async def main(engine: AsyncEngine) -> None:
        streams = [asyncio.create_task(collect(engine, str(i), prompt, 100)) for i, prompt in enumerate(PROMPTS)]
        await asyncio.to_thread(stuck.wait, 30)
        streams.append(asyncio.create_task(collect(engine, "its command is never read", PROMPTS[0], 5)))
        while True:
            await asyncio.sleep(0.01)
            try:
                engine.check_health()
            except EngineDeadError:
                break
        for result in await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 10):
            assert isinstance(result, EngineDeadError)
            assert "step_timeout_s, 0.2 s" in str(result)
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(collect(engine, "late", PROMPTS[0], 5), 5)

    with running(bench) as engine:
        asyncio.run(main(engine))
    # The end of the block did not wait for the thread, which ends when its step does, without another one.
    never.set()
    engine._thread.join(30)
    assert len(bench.runner.steps) == 4


def test_a_busy_engine_is_healthy_however_long_it_is_busy(tiny_target: TinyTarget) -> None:
    bench = new_bench(tiny_target, step_timeout_s=0.2, max_model_len=512)
    execute = bench.runner.execute

    def slowly(plan: StepPlan) -> StepResult:
        time.sleep(0.01)
        return execute(plan)

    bench.runner.execute = slowly

    async def main(engine: AsyncEngine) -> None:
        begin, answer = time.monotonic(), asyncio.create_task(collect(engine, "a", PROMPTS[0], 60))
        while not answer.done():
            engine.check_health()
            await asyncio.sleep(0.002)
        assert time.monotonic() - begin > 3 * 0.2
        assert len(answer.result().token_ids) == 60
        await asyncio.sleep(0.3)  # And so is an idle one.
        engine.check_health()

    with running(bench) as engine:
        asyncio.run(main(engine))


def test_shutdown_ends_open_streams_and_refuses_new_ones(tiny_target: TinyTarget) -> None:
    async def main(engine: AsyncEngine) -> None:
        stream = engine.generate(greedy_request("a", PROMPTS[0], 490))
        await anext(stream)
        engine.shutdown()
        with pytest.raises(EngineDeadError, match="it was shut down"):
            await asyncio.wait_for(consume(stream), 5)
        with pytest.raises(EngineDeadError, match="it was shut down"):
            await asyncio.wait_for(collect(engine, "b", PROMPTS[0], 5), 5)
        with pytest.raises(EngineDeadError):
            engine.check_health()
        engine.shutdown()

    with running(new_bench(tiny_target, max_model_len=512)) as engine:
        asyncio.run(main(engine))


def test_many_streams_opened_while_the_engine_stops_all_end(tiny_target: TinyTarget) -> None:
    """Whether a request reaches the thread before or after its end, its caller hears of it."""

    async def main(engine: AsyncEngine) -> list[Answer | BaseException]:
        streams = [asyncio.create_task(collect(engine, str(index), PROMPTS[0], 40)) for index in range(60)]
        stopping = asyncio.create_task(asyncio.to_thread(engine.shutdown))
        results = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 30)
        await stopping
        return results

    for _ in range(3):
        with running(new_bench(tiny_target)) as engine:
            results = asyncio.run(main(engine))
        assert all(isinstance(result, EngineDeadError) or len(result.token_ids) == 40 for result in results if result)  # pyright: ignore[reportAttributeAccessIssue]
        assert any(isinstance(result, EngineDeadError) for result in results)


def test_an_engine_without_a_tokenizer_cannot_stream_text(tiny_target: TinyTarget) -> None:
    bench = new_bench(tiny_target)
    bench.engine.codec = None
    with pytest.raises(ValueError, match="needs an engine with a TextCodec"):
        AsyncEngine(lambda: bench.engine)


def test_one_thread_builds_and_runs_and_its_failure_is_the_caller_s(tiny_target: TinyTarget) -> None:
    threads: list[threading.Thread] = []

    def build() -> Engine:
        threads.append(threading.current_thread())
        return new_bench(tiny_target).engine

    engine = AsyncEngine(build)
    assert threads[0].name == "engine"
    assert threads[0].is_alive()
    engine.shutdown()
    assert not threads[0].is_alive()

    def fail() -> Engine:
        raise CheckpointError("no such file")

    with pytest.raises(CheckpointError, match="no such file"):
        AsyncEngine(fail)
