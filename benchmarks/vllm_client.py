"""Driving a vLLM engine: so many answers at once, the next as soon as one ends, with a time for every step."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.engine_client import MICROSECONDS, EngineAnswer, LoopTrace, OpenAnswer, StepTime, closed_answer
from replicas.request import GenerationRequest, SamplingParams
from replicas.vllm_engine.engine import VllmEngine
from replicas.vllm_engine.stats import VllmStats


@dataclass(slots=True)
class StepClock:
    """Hears vLLM's figures after each step; which steps decoded a full batch, and how long they took."""

    _heard: list[tuple[float, VllmStats]] = field(default_factory=list[tuple[float, VllmStats]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hear(self, stats: VllmStats) -> None:
        """A StepListener."""
        with self._lock:
            self._heard.append((time.perf_counter(), stats))

    def take(self, concurrency: int) -> tuple[StepTime, ...]:
        """Those since the last call that decoded `concurrency` sequences and prefilled nothing.

        Seconds are between vLLM's reports of two steps; drafting, which happens inside, has no time of its own.
        """
        with self._lock:
            heard, self._heard = self._heard, []
        found: list[StepTime] = []
        for (before, earlier), (now, later) in pairwise(heard):
            full = earlier.running == concurrency and earlier.waiting == 0
            tokens = later.generated_tokens - earlier.generated_tokens
            if full and later.prompt_tokens == earlier.prompt_tokens and later.steps == earlier.steps + 1 and tokens:
                found.append(StepTime(round(now - before, MICROSECONDS), 0.0, tokens))
        return tuple(found)


async def run_together_on(
    engine: VllmEngine, clock: StepClock, prompts: Sequence[Sequence[int]], sampling: SamplingParams, concurrency: int
) -> LoopTrace:
    """Answer all `prompts` (token ids), `concurrency` at a time: a closed loop, with nothing else running."""
    waiting = deque(enumerate(prompts))
    answers: dict[int, EngineAnswer] = {}
    submitted: dict[int, float] = {}
    clock.take(concurrency)
    begin = time.perf_counter()

    async def client() -> None:
        while waiting:
            index, token_ids = waiting.popleft()
            moment = time.perf_counter()
            submitted[index] = round(moment - begin, MICROSECONDS)
            one = OpenAnswer(index, moment)
            request = GenerationRequest(str(index), tuple(token_ids), sampling)
            async with aclosing(engine.generate(request)) as outputs:
                async for output in outputs:
                    one.hear(output, time.perf_counter())
                    if output.finish_reason is not None:
                        answers[index] = closed_answer(one, output, output.finish_reason)

    await asyncio.gather(*(client() for _ in range(concurrency)))
    order = sorted(answers)
    return LoopTrace(
        round(time.perf_counter() - begin, MICROSECONDS),
        tuple(answers[index] for index in order),
        tuple(submitted[index] for index in order),
        clock.take(concurrency),
    )
