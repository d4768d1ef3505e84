"""The memory plan of a whole engine: its config, its checkpoints' headers, its device. Reads no weight."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from replicas.config import EngineConfig
from replicas.devices.host_memory import available_memory
from replicas.devices.memory_plan import MIB, LargestProgram, MemoryPlan, MemoryPool, plan_memory
from replicas.devices.neuron_hardware import core_pool
from replicas.devices.weight_sizes import Precision, StoredModel
from replicas.drafters.eagle3_config import read_eagle3_config
from replicas.engine_programs import buckets_of, compiled_programs
from replicas.models.checkpoint import Checkpoint
from replicas.models.model_config import ModelConfig
from replicas.models.registry import target_config
from replicas.models.sharding import decoder_sizes
from replicas.models.source import resolve_model
from replicas.runner.shape_buckets import ShapeBuckets

HOST_RESERVE = 128 * MIB
"""Tokenizer, chat template, and what the allocator keeps: 84 MiB measured for the demo."""
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
LAYER_INDEX = re.compile(r"model\.layers\.(\d+)\.")
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
    weight_copies: int = 1


def cpu_placement(dtype: str, ranks: int = 1) -> Placement:
    """Ranks that divide this machine's free memory; activations are float32."""
    precision = Precision(DTYPE_BYTES[dtype], 4, input_block=FBGEMM_BLOCK if dtype == "float16" else 1)
    return Placement(host_pool(ranks), ranks, precision, converts_weights=True)


def host_pool(ranks: int = 1) -> MemoryPool:
    """What this machine has free now, or a rank's equal part of it."""
    name = "this machine's free memory" if ranks == 1 else f"a rank's part of this machine's free memory (1 of {ranks})"
    return MemoryPool(name, available_memory() // ranks, HOST_RESERVE)


def neuron_placement(ranks: int, num_programs: int, dtype: str = "bfloat16") -> Placement:
    """One rank a NeuronCore-v2, everything in `dtype`."""
    size = DTYPE_BYTES[dtype]
    return Placement(core_pool(num_programs), ranks, Precision(size, size), converts_weights=False)


def placement_of(config: EngineConfig) -> Placement:
    """Where `config` says that its ranks live."""
    if config.device == "neuron":
        programs = len(compiled_programs(config))
        placement = neuron_placement(config.tensor_parallel_size, programs, config.dtype)
        # torch_neuronx.trace gives each program weights of its own.
        return replace(placement, weight_copies=programs) if config.executor == "trace" else placement
    if config.device == "xla-cpu":
        size = DTYPE_BYTES[config.dtype]
        return Placement(host_pool(), config.tensor_parallel_size, Precision(size, size), converts_weights=True)
    return cpu_placement(config.dtype, config.tensor_parallel_size)


def plan_config(config: EngineConfig) -> MemoryPlan:
    """The plan of one rank of `config`. Raises CheckpointError or ConfigError if a model is not to be had."""
    folder = resolve_model(config.model)
    return plan_engine(config, target_config(folder), folder, buckets_of(config), placement_of(config))


def plan_engine(
    config: EngineConfig, target: ModelConfig, folder: Path, buckets: ShapeBuckets, placement: Placement
) -> MemoryPlan:
    """The plan of one rank of `config`, whose target is `target` in `folder`. Raises CheckpointError."""
    models = stored_target(target, folder, config), stored_drafter(target, folder, config)
    return plan_models(config, buckets, placement, *models)


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
        weight_copies=placement.weight_copies,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        asked_blocks=config.num_blocks,
    )


def stored_target(target: ModelConfig, folder: Path, config: EngineConfig) -> StoredModel:
    """The target, from its config and the headers of its files. Raises CheckpointError."""
    tensors = {name: shape for name, shape in shapes_in(folder).items() if not is_beyond(name, target.num_layers)}
    sizes, ties = decoder_sizes(target), target.tie_word_embeddings
    return StoredModel(sizes, tensors, config.max_model_len, target.vocab_size, ties)


def stored_drafter(target: ModelConfig, folder: Path, config: EngineConfig) -> StoredModel | None:
    """What the drafter adds; None without one, and for ngram, which keeps a token id a slot. Raises CheckpointError."""
    speculative = config.speculative_config
    if speculative is None or speculative.method == "ngram":
        return None
    own = resolve_model(speculative.model) if speculative.model else folder
    positions = config.max_model_len
    if speculative.method == "eagle3":
        head = read_eagle3_config(own, target)
        return StoredModel(decoder_sizes(head.decoder), shapes_in(own), positions, head.draft_vocab_size)
    if speculative.method == "draft_model":
        shape = target_config(own)
        return StoredModel(decoder_sizes(shape), shapes_in(own), positions, shape.vocab_size, shape.tie_word_embeddings)
    # mtp: one more layer of the target's architecture, which uses the target's rotary tables.
    tensors = {name: s for name, s in shapes_in(own).items() if own != folder or is_beyond(name, target.num_layers)}
    return StoredModel(replace(decoder_sizes(target), num_layers=1), tensors, 0, target.vocab_size)


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the checkpoint in `folder`. Raises CheckpointError."""
    with Checkpoint(folder) as checkpoint:
        return checkpoint.shapes()


def is_beyond(name: str, num_layers: int) -> bool:
    """True for a tensor of a multi-token prediction layer, which some targets carry after their own."""
    layer = LAYER_INDEX.match(name)
    return name.startswith("mtp.") or (layer is not None and int(layer.group(1)) >= num_layers)
