"""The memory plan of a whole engine: its config, its checkpoints' headers, its device. Reads no weight."""

from dataclasses import dataclass
from pathlib import Path

from replicas.config import EngineConfig
from replicas.devices.host_memory import available_memory
from replicas.devices.memory_plan import MIB, LargestProgram, MemoryPlan, MemoryPool, plan_memory
from replicas.devices.neuron_hardware import core_pool
from replicas.devices.weight_sizes import DecoderSizes, Precision, StoredModel
from replicas.drafters.eagle3_config import read_eagle3_config
from replicas.engine_programs import buckets_of, compiled_programs
from replicas.models.checkpoint import Checkpoint
from replicas.models.model_config import ModelConfig
from replicas.models.registry import target_config
from replicas.models.source import resolve_model
from replicas.runner.shape_buckets import ShapeBuckets

HOST_RESERVE = 128 * MIB
"""Tokenizer, chat template, and what the allocator keeps: 84 MiB measured for the demo."""
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
FBGEMM_BLOCK = 512
"""Inputs a block of its packed fp16 weights."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks of an engine live."""

    pool: MemoryPool
    ranks: int
    precision: Precision
    converts_weights: bool
    """In this pool, and not before."""


def cpu_placement(dtype: str) -> Placement:
    """One rank in this machine's free memory; activations are float32."""
    precision = Precision(DTYPE_BYTES[dtype], 4, input_block=FBGEMM_BLOCK if dtype == "float16" else 1)
    return Placement(host_pool(), 1, precision, converts_weights=True)


def host_pool() -> MemoryPool:
    """What this machine has free now."""
    return MemoryPool("this machine's free memory", available_memory(), HOST_RESERVE)


def neuron_placement(ranks: int, num_programs: int, dtype: str = "bfloat16") -> Placement:
    """One rank a NeuronCore-v2, everything in `dtype`."""
    size = DTYPE_BYTES[dtype]
    return Placement(core_pool(num_programs), ranks, Precision(size, size), converts_weights=False)


def placement_of(config: EngineConfig) -> Placement:
    """Where `config` says that its ranks live."""
    if config.device == "neuron":
        return neuron_placement(config.tensor_parallel_size, len(compiled_programs(config)), config.dtype)
    if config.device == "xla-cpu":
        size = DTYPE_BYTES[config.dtype]
        return Placement(host_pool(), config.tensor_parallel_size, Precision(size, size), converts_weights=True)
    return cpu_placement(config.dtype)


def plan_config(config: EngineConfig) -> MemoryPlan:
    """The plan of one rank of `config`. Raises CheckpointError or ConfigError if a model is not to be had."""
    folder = resolve_model(config.model)
    return plan_engine(config, target_config(folder), folder, buckets_of(config), placement_of(config))


def plan_engine(
    config: EngineConfig, target: ModelConfig, folder: Path, buckets: ShapeBuckets, placement: Placement
) -> MemoryPlan:
    """The plan of one rank of `config`, whose target is `target` in `folder`. Raises CheckpointError."""
    speculative = config.speculative_config
    drafter = None
    if speculative is not None:
        head_folder = resolve_model(speculative.model)
        drafter = stored_model(read_eagle3_config(head_folder, target).decoder, head_folder, config.max_model_len)
    return plan_models(config, buckets, placement, stored_model(target, folder, config.max_model_len), drafter)


def plan_models(
    config: EngineConfig,
    buckets: ShapeBuckets,
    placement: Placement,
    target: StoredModel,
    drafter: StoredModel | None,
) -> MemoryPlan:
    """The plan of one rank, of models whose shapes are known."""
    program = LargestProgram(
        batch_size=buckets.batch_sizes[-1],
        chunk_tokens=buckets.chunk_tokens[-1],
        decode_tokens=1 + buckets.speculative_tokens[-1],
        context_tokens=config.max_model_len,
    )
    return plan_memory(
        pool=placement.pool,
        ranks=placement.ranks,
        precision=placement.precision,
        target=target,
        drafter=drafter,
        program=program,
        converts_weights=placement.converts_weights,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        asked_blocks=config.num_blocks,
    )


def stored_model(shape: ModelConfig, folder: Path, positions: int) -> StoredModel:
    """The model in `folder`, from its config and the headers of its files. Raises CheckpointError."""
    with Checkpoint(folder) as checkpoint:
        return StoredModel(decoder_sizes(shape), checkpoint.shapes(), positions)


def decoder_sizes(shape: ModelConfig) -> DecoderSizes:
    """The sizes of `shape` that memory depends on."""
    return DecoderSizes(
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.num_layers,
    )
