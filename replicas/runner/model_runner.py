"""Executes step plans: pack, run the program, read the tokens. Holds device tensors and no scheduling state."""

import time

import torch

from replicas.devices.device_backend import DeviceBackend
from replicas.drafters.drafter import Drafter
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import TargetModel
from replicas.runner.batch_inputs import pack
from replicas.runner.logprob_results import with_logprobs
from replicas.runner.shape_buckets import ShapeBuckets
from replicas.runner.speculative_step import speculative_step
from replicas.scheduling.step_plan import BatchPlan, SequencePlan, SequenceResult, StepPlan, StepResult, TokenChoice


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
        self._buckets = buckets
        self._backend = backend

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
        cache, buckets = self._cache, self._buckets
        if batch.copied_blocks:
            cache.copy_blocks(batch.copied_blocks)
            if self._drafter is not None:
                self._drafter.copy_blocks(batch.copied_blocks)
        num_slots = cache.num_blocks * cache.block_size
        inputs = pack(batch, buckets, cache.block_size, num_slots, self._backend.attends_in_place)
        begin = time.perf_counter()
        outputs = speculative_step(self._target, cache, self._drafter, inputs, batch.num_speculative_tokens)
        emitted, drafts = outputs.emitted.tolist(), outputs.draft_ids.tolist()
        seconds = time.perf_counter() - begin
        results = {
            part.request_id: _result(part, emitted[row], drafts[row]) for row, part in enumerate(batch.sequences)
        }
        if outputs.logprobs is not None or outputs.prompt_logprobs is not None:
            results = with_logprobs(results, batch, outputs)
        return results, seconds

    def warm_up(self) -> int:
        """Run every decode bucket and the largest prompt chunk once on padding; returns how many programs ran."""
        greedy = TokenChoice(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
        batches: list[BatchPlan] = []
        for size in self._buckets.batch_sizes:
            for k in sorted({0, self._buckets.max_num_speculative_tokens}):
                part = SequencePlan("warm-up", (0,), -1, 0, None, k, (0,), greedy)
                batches.append(BatchPlan((part,) * size, k, is_prefill=False))
        chunk = SequencePlan("warm-up", (0,) * self._buckets.chunk_tokens[-1], 0, 0, None, 0, (0,), greedy)
        batches.append(BatchPlan((chunk,), 0, is_prefill=True))
        for batch in batches:
            self._run(batch)
        return len(batches)


def _result(part: SequencePlan, emitted: list[int], drafts: list[int]) -> SequenceResult:
    if part.next_prompt_token is not None:
        return SequenceResult((), ())
    return SequenceResult(tuple(token for token in emitted if token >= 0), tuple(drafts))
