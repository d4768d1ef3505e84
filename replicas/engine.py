"""The engine: plan, execute, apply. Synchronous and without Ray, so that sweeps and tests can drive it."""

import logging
import time
from dataclasses import dataclass

from replicas.config import EngineConfig
from replicas.devices.environment import probe
from replicas.devices.start_checks import cpu_findings, neuron_findings, require
from replicas.drafters.registry import DRAFTERS
from replicas.engine_memory import placement_of, plan_engine
from replicas.engine_programs import buckets_of, compiled_programs
from replicas.engine_runner import Drafters
from replicas.errors import RequestError
from replicas.kv_cache.block_allocator import BlockAllocator
from replicas.kv_cache.prefix_cache import PrefixCache
from replicas.models.model_config import ModelConfig
from replicas.models.registry import target_config
from replicas.models.source import resolve_model
from replicas.request import GenerationRequest, RequestOutput
from replicas.runner.step_runner import StepRunner
from replicas.scheduling.decoding_figures import DecodingFigures
from replicas.scheduling.k_policy import KPolicy, allowed_k
from replicas.scheduling.prompt_limits import check_prompt
from replicas.scheduling.scheduler import Scheduler, SchedulerLimits
from replicas.scheduling.sequence import Sequence
from replicas.scheduling.token_choice import token_choice
from replicas.structured_output import Grammars
from replicas.tensor_parallel.start import start_group
from replicas.text_codec import TextCodec

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Figures of an engine between two steps."""

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    steps: int
    generated_tokens: int
    busy_seconds: float
    """Time spent in steps so far."""
    program_seconds: float
    """Of it, in device programs; the rest is the host's: planning, packing, text."""
    prefix_cache_queries: int
    """Prompt tokens looked for in the prefix cache so far."""
    prefix_cache_hits: int
    """Those found."""
    preemptions: int
    """Times so far that a sequence had to give its blocks up, to be computed again."""
    waiting_prompt_tokens: int
    """Tokens of prompts, and of preempted sequences, that no step has run yet."""
    num_speculative_tokens: int
    """K of the last step that decoded."""
    decode_seconds: float
    """Time so far of steps in which sequences decoded, whatever else those did."""
    decode_sequence_seconds: float
    """The same, once for each sequence that decoded: over decode_tokens it is the time per output token."""
    decode_tokens: int
    """Tokens that those steps gave to those sequences."""
    programs: int
    """Different device programs that ran so far (replicas.runner.programs)."""
    programs_after_warm_up: int
    """Those that ran first after warm-up: always 0 on a device that compiles; elsewhere a new one costs nothing."""


class Engine:
    """Owns the scheduler and the runner of one model."""

    def __init__(
        self,
        config: EngineConfig,
        codec: TextCodec | None,
        shape: ModelConfig,
        scheduler: Scheduler,
        allocator: BlockAllocator,
        runner: StepRunner,
    ) -> None:
        self.config = config
        self.codec = codec
        self._vocab_size = shape.vocab_size
        self._eos_token_ids = frozenset(shape.eos_token_ids) | frozenset(codec.eos_token_ids if codec else ())
        vocabulary = codec.all_token_bytes if codec else list[bytes]
        self.grammars = Grammars(vocabulary, shape.vocab_size, sorted(self._eos_token_ids))
        self._scheduler = scheduler
        self._allocator = allocator
        self._runner = runner
        self._steps = 0
        self._generated_tokens = 0
        self._busy_seconds = 0.0
        self._program_seconds = 0.0
        self._decoding = DecodingFigures()

    def add_request(self, request: GenerationRequest) -> None:
        """Queue `request`.

        Raises RequestError: id in use; those of check_prompt, token_choice and Grammars.compile.
        """
        if request.request_id in self._scheduler:
            raise RequestError(f"request id {request.request_id!r} is in use", "request_id")
        limit = self.config.max_model_len
        check_prompt(request.prompt_token_ids, limit, self._vocab_size)
        sampling = request.sampling
        eos = frozenset[int]() if sampling.ignore_eos else self._eos_token_ids
        stops = eos | frozenset(sampling.stop_token_ids)
        choice = token_choice(sampling, len(request.prompt_token_ids), stops, self._vocab_size)
        text = self.codec.text_stream(sampling.stop) if self.codec else None
        grammar = self.grammars.matcher(sampling.grammar) if sampling.grammar else None
        tokens = list(request.prompt_token_ids)
        self._scheduler.add(Sequence(request, choice, text, stops, limit, tokens, grammar=grammar))

    def abort(self, request_id: str) -> None:
        """Drop a request and free its blocks; unknown ids are ignored, since it may just have ended."""
        self._scheduler.abort(request_id)

    @property
    def has_work(self) -> bool:
        """True if a step would do something."""
        return self._scheduler.num_running + self._scheduler.num_waiting > 0

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the news of each request that has some."""
        begin = time.perf_counter()
        plan = self._scheduler.plan()
        result = self._runner.execute(plan)
        outputs = self._scheduler.apply(plan, result)
        self._steps += 1
        self._generated_tokens += sum(len(output.token_ids) for output in outputs)
        self._program_seconds += result.program_seconds
        seconds = time.perf_counter() - begin
        self._busy_seconds += seconds
        self._decoding = self._decoding.after(plan, outputs, seconds)
        return outputs

    def warm_up(self) -> int:
        """Run the programs once, on padding (ModelRunner.warm_up); returns how many."""
        return self._runner.warm_up()

    def check_health(self) -> None:
        """Raises EngineDeadError if a rank has ended. Callable from any thread."""
        self._runner.check_health()

    def close(self) -> None:
        """End the processes of other ranks, if there are some."""
        self._runner.close()

    def stats(self) -> EngineStats:
        """Figures as of the last step."""
        return EngineStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            free_blocks=self._allocator.num_free,
            total_blocks=self._allocator.num_blocks - 1,
            steps=self._steps,
            generated_tokens=self._generated_tokens,
            busy_seconds=self._busy_seconds,
            program_seconds=self._program_seconds,
            prefix_cache_queries=self._scheduler.prefix_cache_stats.queried_tokens,
            prefix_cache_hits=self._scheduler.prefix_cache_stats.hit_tokens,
            preemptions=self._scheduler.num_preemptions,
            waiting_prompt_tokens=self._scheduler.num_waiting_prompt_tokens,
            num_speculative_tokens=self._decoding.num_speculative_tokens,
            decode_seconds=self._decoding.seconds,
            decode_sequence_seconds=self._decoding.sequence_seconds,
            decode_tokens=self._decoding.tokens,
            programs=self._runner.num_programs,
            programs_after_warm_up=self._runner.num_new_programs,
        )


def check_start(config: EngineConfig) -> None:
    """Refuse, before anything is loaded or compiled, what this machine or this code cannot do. Raises ConfigError."""
    if config.device == "cpu":
        require(cpu_findings(probe(), config.dtype, config.num_threads))
    if config.device == "neuron":
        require(neuron_findings(probe(), config.tensor_parallel_size, len(compiled_programs(config))))


def build_engine(
    config: EngineConfig,
    k_policy: KPolicy,
    drafters: Drafters = DRAFTERS,
) -> Engine:
    """Load and place everything that `config` names, its drafter by one of `drafters`.

    What cannot fit the device's memory is refused before a weight is read; KV blocks that do not fit are left out.
    Raises CheckpointError or ConfigError, each in one sentence.
    """
    check_start(config)
    folder = resolve_model(config.model)
    shape = target_config(folder)
    speculative = config.speculative_config
    ks = speculative.speculative_tokens if speculative else (0,)
    if speculative:
        for size in range(1, config.max_num_seqs + 1):
            allowed_k(k_policy, size, ks)
    memory = plan_engine(config, shape, folder, buckets_of(config), placement_of(config))
    memory.check()
    num_blocks = memory.num_blocks
    if num_blocks < memory.wanted_blocks:
        logger.warning("KV has %d blocks; max_num_seqs wants %d", num_blocks, memory.wanted_blocks)
    group = start_group(config, num_blocks, drafters)
    limits = SchedulerLimits(
        config.max_model_len,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.block_size,
        ks,
        group.drafter.max_positions if group.drafter else None,
        group.attends_in_place,
    )
    allocator = BlockAllocator(num_blocks)
    prefix_cache = PrefixCache(allocator, config.block_size) if config.enable_prefix_caching else None
    return Engine(
        config,
        TextCodec(folder),
        shape,
        Scheduler(limits, allocator, k_policy, prefix_cache),
        allocator,
        group.runner,
    )
