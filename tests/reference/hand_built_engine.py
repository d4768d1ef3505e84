"""An engine put together by hand, so that a test can give it its own drafter, policy and pool."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from replicas.config import EngineConfig, SpeculativeConfig
from replicas.devices.cpu import CpuBackend
from replicas.devices.device_backend import DeviceBackend
from replicas.drafters.drafter import Drafter
from replicas.drafters.registry import DRAFTERS, DrafterContext
from replicas.engine import Engine
from replicas.kv_cache.block_allocator import BlockAllocator
from replicas.kv_cache.paged_cache import PagedCache
from replicas.kv_cache.prefix_cache import PrefixCache
from replicas.models.registry import load_target, target_config
from replicas.models.sharding import RankShare
from replicas.request import GenerationRequest, RequestOutput, SamplingParams
from replicas.runner.model_runner import ModelRunner
from replicas.runner.shape_buckets import ShapeBuckets
from replicas.scheduling.k_policy import KPolicy
from replicas.scheduling.scheduler import Scheduler, SchedulerLimits
from replicas.scheduling.step_plan import SequenceResult, StepPlan, StepResult
from replicas.text_codec import TextCodec


class RecordingRunner(ModelRunner):
    """A runner that keeps every plan with its result, and raises at step `fail_at`."""

    fail_at: int | None = None

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.steps: list[tuple[StepPlan, StepResult]] = []

    def execute(self, plan: StepPlan) -> StepResult:
        """Run, and remember."""
        if self.fail_at == len(self.steps):
            raise RuntimeError("the device is gone")
        result = super().execute(plan)
        self.steps.append((plan, result))
        return result

    def drafts_of(self, request_id: str) -> list[tuple[int, tuple[int, ...]]]:
        """(length of the sequence by then, drafts kept) of every step that proposed for `request_id`."""
        found: list[tuple[int, tuple[int, ...]]] = []
        for plan, result in self.steps:
            for part in (part for batch in plan.batches for part in batch.sequences if part.request_id == request_id):
                news = result.sequences[request_id]
                length = part.start + len(part.token_ids) - part.num_drafts + len(news.token_ids)
                if news.token_ids and part.num_propose:
                    found.append((length, news.draft_token_ids[: part.num_propose]))
        return found

    def results_of(self, request_id: str) -> list[SequenceResult]:
        """What each step gave to `request_id`."""
        return [result.sequences[request_id] for _, result in self.steps if request_id in result.sequences]


@dataclass(frozen=True)
class Bench:
    """An engine and the parts of it that a test looks into."""

    engine: Engine
    runner: RecordingRunner
    scheduler: Scheduler
    allocator: BlockAllocator


class TinyTarget:
    """A target loaded once, from which engines are built in a few milliseconds."""

    def __init__(self, folder: Path, max_model_len: int = 512, backend: DeviceBackend | None = None) -> None:
        self.folder = folder
        self.shape = target_config(folder)
        self.backend: DeviceBackend = backend or CpuBackend("float32", num_threads=1)
        self._max_model_len = max_model_len
        with torch.inference_mode():
            self.model = load_target(folder, self.shape, self.backend, max_model_len)
        self.codec: TextCodec | None = TextCodec(folder) if (folder / "tokenizer.json").exists() else None

    def config(self, **changes: object) -> EngineConfig:
        """An EngineConfig of this target with few and small blocks."""
        fields: dict[str, object] = {
            "model": str(self.folder),
            "dtype": "float32",
            "num_threads": 1,
            "max_model_len": 128,
            "max_num_seqs": 8,
            "block_size": 4,
            "max_num_batched_tokens": 64,
        }
        return EngineConfig.model_validate(fields | changes)

    def _num_blocks(self, config: EngineConfig) -> int:
        return config.num_blocks or 1 + config.max_num_seqs * -(-config.max_model_len // config.block_size)

    def drafter(self, config: EngineConfig, speculative: SpeculativeConfig) -> Drafter:
        """A drafter as an engine of `config` would have it."""
        with torch.inference_mode():
            context = DrafterContext(config, speculative, self.model, self.backend, self._num_blocks(config))
            return DRAFTERS[speculative.method](context)

    def bench(
        self,
        config: EngineConfig,
        k_policy: KPolicy,
        drafter: Drafter | None = None,
        head: Path | None = None,
        speculative: SpeculativeConfig | None = None,
        ks: Sequence[int] = range(9),
        buckets: ShapeBuckets | None = None,
    ) -> Bench:
        """An engine that drafts with `drafter`, or with the EAGLE3 head in `head`, or as `speculative` says, or not.

        A step may run any of `ks`; `buckets` replaces the shapes that an engine builds for itself.
        """
        torch.set_num_threads(1)
        num_blocks = self._num_blocks(config)
        if head is not None:
            speculative = SpeculativeConfig(method="eagle3", model=str(head))
        with torch.inference_mode():
            shape = self.shape
            kv_heads = RankShare.of(self.backend.collectives).config(shape).num_kv_heads
            sizes = (shape.num_layers, num_blocks, config.block_size, kv_heads, shape.head_dim)
            device, dtype = self.backend.torch_device, self.backend.activation_dtype
            target_cache = PagedCache(*sizes, device, dtype, self.backend.compiles)
            if speculative is not None:
                drafter = self.drafter(config, speculative)
        if drafter is not None:
            self.model.tap(drafter.tapped_layers)
        ks = tuple(ks) if drafter else (0,)
        sizes = (config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len, config.block_size, ks)
        buckets = buckets or ShapeBuckets.build(*sizes)
        runner = RecordingRunner(self.model, target_cache, drafter, buckets, self.backend)
        limits = SchedulerLimits(
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            block_size=config.block_size,
            speculative_tokens=ks,
            max_draft_len=drafter.max_positions if drafter else None,
            attends_in_place=self.backend.attends_in_place,
        )
        allocator = BlockAllocator(num_blocks)
        prefix_cache = PrefixCache(allocator, config.block_size) if config.enable_prefix_caching else None
        scheduler = Scheduler(limits, allocator, k_policy, prefix_cache)
        engine = Engine(config, self.codec, self.shape, scheduler, allocator, runner)
        return Bench(engine, runner, scheduler, allocator)


@dataclass
class Answer:
    """All news of one request, joined."""

    token_ids: list[int] = field(default_factory=list[int])
    text: str = ""
    outputs: list[RequestOutput] = field(default_factory=list[RequestOutput])

    @property
    def last(self) -> RequestOutput:
        return self.outputs[-1]

    @property
    def finish_reason(self) -> str | None:
        return self.last.finish_reason


def run_steps(engine: Engine, answers: Mapping[str, Answer], most: int = 10_000) -> None:
    """Step `engine` until it has no work, adding news to `answers`."""
    while engine.has_work:
        for output in engine.step():
            answer = answers[output.request_id]
            answer.token_ids += output.token_ids
            answer.text += output.text
            answer.outputs.append(output)
        most -= 1
        assert most, "the engine makes no progress"


def generate(engine: Engine, requests: Iterable[GenerationRequest]) -> dict[str, Answer]:
    """Run `requests`, all added at once, to their ends."""
    answers: dict[str, Answer] = defaultdict(Answer)
    for request in requests:
        engine.add_request(request)
        answers[request.request_id] = Answer()
    run_steps(engine, answers)
    return dict(answers)


def greedy_request(request_id: str, prompt: Iterable[int], max_tokens: int, **sampling: object) -> GenerationRequest:
    """A greedy request that only max_tokens ends, unless `sampling` says otherwise."""
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True}
    return GenerationRequest(request_id, tuple(prompt), SamplingParams(**(fields | sampling)))  # pyright: ignore[reportArgumentType]
