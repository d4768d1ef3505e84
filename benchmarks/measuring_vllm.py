"""Doing a sweep's runs on vLLM, which starts anew for every K: it reads K by batch size once."""

import asyncio
from collections.abc import Callable

from benchmarks.engine_client import engine_for_measuring
from benchmarks.measuring import WARM_UP_TOKENS, Task, engine_prompt, prompts_of
from benchmarks.results import Run
from benchmarks.sweep_config import SweepConfig
from benchmarks.vllm_client import StepClock, run_together_on
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.request import SamplingParams
from replicas.scheduling.k_policy import KPolicy
from replicas.vllm_engine.config import VllmConfig
from replicas.vllm_engine.engine import StepListener, VllmEngine, build_vllm_engine
from replicas.vllm_engine.engine_args import k_ranges

VllmBuilder = Callable[[VllmConfig, KPolicy, StepListener], VllmEngine]


def start_vllm(config: VllmConfig, policy: KPolicy, listener: StepListener) -> VllmEngine:
    """The installed one."""
    return build_vllm_engine(config, policy, listener=listener)


def in_few_starts(tasks: list[Task]) -> list[Task]:
    """`tasks` with all of one K together within each repeat; drift between Ks is left to the repeats."""
    return sorted(tasks, key=lambda task: (task.repeat, task.cell.k is None, task.cell.k or 0))


class MeasuringVllm:
    """See MeasuringEngine."""

    def __init__(self, config: SweepConfig, engine: VllmConfig, build: VllmBuilder = start_vllm) -> None:
        self._config = config
        self._engine_config = engine_for_measuring(engine, max(config.k), max(config.batch))
        self._build = build
        self._prompts = read_prompts(config.prompts or OWN_PROMPTS)
        self._clock = StepClock()
        self._ranges: list[list[int]] | None = None
        self._engine: VllmEngine | None = None

    def warm_up(self) -> None:
        """Every start warms up for itself."""

    def run(self, task: Task, session: str, policy: KPolicy) -> Run:
        """Do `task` with K by `policy`."""
        engine = self._engine_with(policy)
        chosen = prompts_of(self._config, task, self._prompts)
        context = task.cell.context_tokens
        prompts = [engine_prompt(engine.codec, prompt, self._prompts, context) for prompt in chosen]
        sampling = SamplingParams(temperature=0, max_tokens=self._config.max_tokens)
        trace = asyncio.run(run_together_on(engine, self._clock, prompts, sampling, task.cell.batch))
        return Run(session, task.cell, task.repeat, trace, tuple(prompt.category for prompt in chosen))

    def close(self) -> None:
        """End vLLM's processes."""
        if self._engine is not None:
            self._engine.shutdown()

    def _engine_with(self, policy: KPolicy) -> VllmEngine:
        config = self._engine_config
        allowed = config.speculative_config.speculative_tokens if config.speculative_config else (0,)
        ranges = k_ranges(policy, config.max_num_seqs, allowed)
        if self._engine is None or ranges != self._ranges:
            self.close()
            self._engine = self._build(config, policy, self._clock.hear)
            self._ranges = ranges
            prompt = self._engine.codec.encode_chat(self._prompts[0].messages)
            sampling = SamplingParams(temperature=0, max_tokens=WARM_UP_TOKENS)
            batch = max(self._config.batch)
            asyncio.run(run_together_on(self._engine, self._clock, [prompt] * batch, sampling, batch))
        return self._engine
