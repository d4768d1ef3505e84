"""Executes step plans: pack, run the program, read the tokens. Holds device tensors and no scheduling state."""

import time
from itertools import takewhile

import torch

from replicas.devices.device_backend import DeviceBackend
from replicas.drafters.drafter import Drafter
from replicas.errors import EyrieError
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import TargetModel
from replicas.runner.batch_inputs import BatchInputs, pack
from replicas.runner.logprob_results import with_logprobs
from replicas.runner.programs import ProgramKey, ProgramSet
from replicas.runner.shape_buckets import ShapeBuckets
from replicas.runner.speculative_step import StepOutputs, speculative_step
from replicas.scheduling.step_plan import BatchPlan, SequencePlan, SequenceResult, StepPlan, StepResult


class ModelRunner:
    """One target and perhaps one drafter on one device."""

    def __init__(
        self,
        target: TargetModel,
        cache: PagedCache,
        drafter: Drafter | None,
        buckets: ShapeBuckets,
        backend: DeviceBackend,
    ) -> None:
        self._target = target
        self._cache = cache
        self._drafter = drafter
        self._backend = backend
        self._executor = backend.executor((cache, *(drafter.states if drafter else ())))
        self.programs = ProgramSet(buckets, cache.num_blocks, backend.attends_in_place, backend.compiles)
        self._known: set[ProgramKey] = set()
        self._num_warmed_up: int | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        """Run every batch of `plan`."""
        results: dict[str, SequenceResult] = {}
        program_seconds = 0.0
        for batch in plan.batches:
            of_batch, seconds = self._run(batch)
            results.update(of_batch)
            program_seconds += seconds
        return StepResult(results, program_seconds)

    @torch.inference_mode()
    def _run(self, batch: BatchPlan) -> tuple[dict[str, SequenceResult], float]:
        if batch.copied_blocks:
            self._cache.copy_blocks(batch.copied_blocks)
            if self._drafter is not None:
                self._drafter.copy_blocks(batch.copied_blocks)
        key = self.programs.of(batch)
        inputs = pack(batch.sequences, key, self._cache.block_size, self._target.config.vocab_size)
        begin = time.perf_counter()
        outputs = self._execute(key, inputs)
        seconds = time.perf_counter() - begin
        results = {
            part.request_id: _result(part, tokens[: key.choices], tokens[key.choices :])
            for part, tokens in zip(batch.sequences, outputs.tokens.tolist(), strict=False)
        }
        if outputs.logprobs is not None or outputs.prompt_logprobs is not None:
            results = with_logprobs(results, batch, outputs, key.choices)
        return results, seconds

    def _execute(self, key: ProgramKey, inputs: BatchInputs) -> StepOutputs:
        if key not in self._known:
            if self._backend.compiles and self._num_warmed_up is not None:
                raise EyrieError(f"{key} was not built at warm-up, and nothing is compiled while requests wait")
            self._known.add(key)

        def program(inputs: BatchInputs) -> StepOutputs:
            return speculative_step(self._target, self._cache, self._drafter, inputs, key.num_speculative_tokens)

        return self._executor(key, program, inputs)

    @torch.inference_mode()
    def warm_up(self) -> int:
        """Run every program on padding, or where nothing is compiled the largest; returns how many ran."""
        for key in self.programs.all() if self._backend.compiles else self.programs.largest():
            self._execute(key, pack((), key, self._cache.block_size, self._target.config.vocab_size))
        self._num_warmed_up = len(self._known)
        return self._num_warmed_up

    @property
    def num_programs(self) -> int:
        """Different programs that ran so far."""
        return len(self._known)

    @property
    def num_new_programs(self) -> int:
        """Those that ran first after warm-up: 0 where programs are compiled."""
        return 0 if self._num_warmed_up is None else len(self._known) - self._num_warmed_up

    def check_health(self) -> None:
        """See StepRunner: one rank fails in `execute` alone."""

    def close(self) -> None:
        """See StepRunner: one rank holds nothing but memory."""


def _result(part: SequencePlan, emitted: list[int], drafts: list[int]) -> SequenceResult:
    if part.next_prompt_token is not None:
        return SequenceResult((), ())
    return SequenceResult(
        tuple(token for token in emitted if token >= 0), tuple(takewhile(lambda token: token >= 0, drafts))
    )
