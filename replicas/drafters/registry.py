"""Drafting methods: one line each."""

from collections.abc import Callable
from dataclasses import dataclass

from replicas.config import EngineConfig, SpeculativeConfig
from replicas.devices.device_backend import DeviceBackend
from replicas.drafters.drafter import Drafter
from replicas.drafters.eagle3 import Eagle3Drafter
from replicas.drafters.eagle3_head import Eagle3Head
from replicas.drafters.ngram import NgramDrafter
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import TargetModel
from replicas.models.source import resolve_model


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a drafter may be built from."""

    engine: EngineConfig
    speculative: SpeculativeConfig
    target: TargetModel
    backend: DeviceBackend
    num_blocks: int


def build_eagle3(context: DrafterContext) -> Drafter:
    """The EAGLE3 head named by `speculative_config.model`, its KV in the target's blocks."""
    engine, target, backend = context.engine, context.target, context.backend
    assert context.speculative.model is not None
    folder = resolve_model(context.speculative.model)
    head = Eagle3Head(folder, target.config, target.embedding, backend, engine.max_model_len)
    cache = PagedCache(
        num_layers=1,
        num_blocks=context.num_blocks,
        block_size=engine.block_size,
        num_kv_heads=head.config.num_kv_heads,
        head_dim=head.config.head_dim,
        device=backend.torch_device,
        dtype=backend.activation_dtype,
    )
    return Eagle3Drafter(head, cache)


def build_ngram(context: DrafterContext) -> Drafter:
    """Prompt lookup, its tokens in the target's blocks."""
    shortest, longest = context.speculative.lookup_range
    device = context.backend.torch_device
    return NgramDrafter(shortest, longest, context.num_blocks, context.engine.block_size, device)


DRAFTERS: dict[str, Callable[[DrafterContext], Drafter]] = {
    "eagle3": build_eagle3,
    "ngram": build_ngram,
}
