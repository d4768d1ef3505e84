"""Drafting methods: one line each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from replicas.config import EngineConfig, SpeculativeConfig
from replicas.devices.device_backend import DeviceBackend
from replicas.drafters.drafter import Drafter
from replicas.drafters.eagle3 import Eagle3Drafter
from replicas.drafters.eagle3_head import Eagle3Head
from replicas.drafters.mtp import MtpDrafter
from replicas.drafters.mtp_head import MtpHead
from replicas.drafters.ngram import NgramDrafter
from replicas.drafters.small_model import SmallModelDrafter, check_vocabulary
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.model_config import ModelConfig
from replicas.models.registry import TargetModel, load_target, target_config
from replicas.models.sharding import RankShare
from replicas.models.source import resolve_model


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a drafter may be built from."""

    engine: EngineConfig
    speculative: SpeculativeConfig
    target: TargetModel
    backend: DeviceBackend
    num_blocks: int

    @property
    def folder(self) -> Path:
        """Of the drafter's checkpoint: the target's own where none is named. Raises CheckpointError if it is absent."""
        return resolve_model(self.speculative.model or self.engine.model)

    def cache(self, config: ModelConfig, num_layers: int) -> PagedCache:
        """KV of a drafter's layers shaped as `config`, in the target's block ids."""
        return PagedCache(
            num_layers=num_layers,
            num_blocks=self.num_blocks,
            block_size=self.engine.block_size,
            num_kv_heads=RankShare.of(self.backend.collectives).config(config).num_kv_heads,
            head_dim=config.head_dim,
            device=self.backend.torch_device,
            dtype=self.backend.activation_dtype,
            is_static=self.backend.compiles,
        )


def build_eagle3(context: DrafterContext) -> Drafter:
    """The EAGLE3 head named by `speculative_config.model`, its KV in the target's blocks."""
    engine, target, backend = context.engine, context.target, context.backend
    head = Eagle3Head(context.folder, target.config, target.embedding, backend, engine.max_model_len)
    return Eagle3Drafter(head, context.cache(head.config, num_layers=1))


def build_draft_model(context: DrafterContext) -> Drafter:
    """The language model named by `speculative_config.model`, its KV in the target's blocks."""
    check_vocabulary(context.folder, resolve_model(context.engine.model))
    config = target_config(context.folder)
    longest = min(context.engine.max_model_len, config.max_positions)
    model = load_target(context.folder, config, context.backend, longest)
    return SmallModelDrafter(model, context.cache(config, config.num_layers), context.target.config.vocab_size)


def build_mtp(context: DrafterContext) -> Drafter:
    """The MTP layer of `speculative_config.model`, or of the target's own checkpoint; its KV in the target's blocks."""
    target = context.target
    head = MtpHead(context.folder, target, context.backend)
    return MtpDrafter(head, target.rotary, context.cache(target.config, num_layers=1))


def build_ngram(context: DrafterContext) -> Drafter:
    """Prompt lookup, its tokens in the target's blocks."""
    shortest, longest = context.speculative.lookup_range
    device = context.backend.torch_device
    return NgramDrafter(shortest, longest, context.num_blocks, context.engine.block_size, device)


DRAFTERS: dict[str, Callable[[DrafterContext], Drafter]] = {
    "draft_model": build_draft_model,
    "eagle3": build_eagle3,
    "mtp": build_mtp,
    "ngram": build_ngram,
}
