"""One rank's device, models and runner, from the engine's config: the same on every rank."""

from collections.abc import Callable, Mapping

import torch

from replicas.config import EngineConfig
from replicas.devices.collectives import Collectives
from replicas.devices.cpu import CpuBackend
from replicas.devices.device_backend import DeviceBackend
from replicas.devices.neuron_trace import NeuronTraceBackend
from replicas.devices.xla_neuron import XlaBackend
from replicas.drafters.drafter import Drafter
from replicas.drafters.registry import DrafterContext
from replicas.engine_programs import buckets_of
from replicas.errors import ConfigError
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import load_target, target_config
from replicas.models.sharding import RankShare
from replicas.models.source import resolve_model
from replicas.runner.model_runner import ModelRunner

Drafters = Mapping[str, Callable[[DrafterContext], Drafter]]
"""What builds the drafter of each method."""


def build_backend(config: EngineConfig, collectives: Collectives | None = None) -> DeviceBackend:
    """The device that `config` names, of one rank. Raises ConfigError where its runtime is not installed, and for
    another number of ranks than tensor_parallel_size.

    `collectives` are given on a CPU, whose ranks meet before; NeuronCores meet in their runtime.
    """
    if config.device == "cpu":
        backend: DeviceBackend = CpuBackend(
            config.dtype, config.num_threads, deterministic=config.deterministic, collectives=collectives
        )
    elif config.executor == "trace":
        backend = NeuronTraceBackend(config.dtype)
    else:
        backend = XlaBackend(config.device, config.dtype, ranks=config.tensor_parallel_size)
    if backend.collectives.size != config.tensor_parallel_size:
        # A runtime that was started wrongly would answer alone, and be silently wrong.
        raise ConfigError(
            f"tensor_parallel_size is {config.tensor_parallel_size}, but the model would run on "
            f"{backend.collectives.size} ranks"
        )
    return backend


def build_runner(
    config: EngineConfig, backend: DeviceBackend, num_blocks: int, drafters: Drafters
) -> tuple[ModelRunner, Drafter | None]:
    """Load this rank's part of everything. Raises CheckpointError or ConfigError."""
    folder = resolve_model(config.model)
    shape, speculative = target_config(folder), config.speculative_config
    with torch.inference_mode():
        target = load_target(folder, shape, backend, config.max_model_len)
        cache = PagedCache(
            num_layers=shape.num_layers,
            num_blocks=num_blocks,
            block_size=config.block_size,
            num_kv_heads=RankShare.of(backend.collectives).config(shape).num_kv_heads,
            head_dim=shape.head_dim,
            device=backend.torch_device,
            dtype=backend.activation_dtype,
            is_static=backend.compiles,
        )
        drafter = None
        if speculative:
            context = DrafterContext(config, speculative, target, backend, num_blocks)
            drafter = drafters[speculative.method](context)
            target.tap(drafter.tapped_layers)
    return ModelRunner(target, cache, drafter, buckets_of(config), backend), drafter
