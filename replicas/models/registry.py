"""Architectures that can be served: one line each."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from replicas.devices.device_backend import DeviceBackend
from replicas.errors import CheckpointError
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.checkpoint import Checkpoint
from replicas.models.decoder_layer import DecoderLayer, LayerWeights
from replicas.models.layers import AttentionInputs, RotaryEmbedding
from replicas.models.llama import LlamaModel
from replicas.models.model_config import ModelConfig, model_config
from replicas.models.qwen2 import Qwen2Model
from replicas.models.qwen3 import Qwen3Model
from replicas.models.source import read_hf_config
from replicas.models.vocabulary import Embedding


class TargetModel(Protocol):
    """What the runner asks of a target."""

    config: ModelConfig
    rotary: RotaryEmbedding
    embedding: Embedding

    def tap(self, layers: tuple[int, ...]) -> None:
        """Make `forward` return the input states of `layers`."""
        ...

    def forward(self, token_ids: Tensor, attention: AttentionInputs, cache: PagedCache) -> tuple[Tensor, Tensor | None]:
        """Token ids [batch, tokens] -> normed states [rows, hidden], tapped states [rows, taps * hidden]."""
        ...

    def load_layer(self, weights: LayerWeights) -> DecoderLayer:
        """One more layer of this architecture, as an MTP layer is."""
        ...

    def run_layer(
        self, layer: DecoderLayer, index: int, hidden: Tensor, attention: AttentionInputs, cache: PagedCache
    ) -> Tensor:
        """States [rows, hidden] after `layer`, whose KV is layer `index` of `cache`, of the `hidden` that enter it."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab]."""
        ...

    def best(self, hidden: Tensor, below: int | None = None) -> Tensor:
        """The argmax of the same, [rows] int32, perhaps of ids under `below` alone: no rank sees all logits."""
        ...


TARGETS: dict[str, Callable[[ModelConfig, Checkpoint, DeviceBackend, int], TargetModel]] = {
    "LlamaForCausalLM": LlamaModel,
    "Qwen2ForCausalLM": Qwen2Model,
    "Qwen3ForCausalLM": Qwen3Model,
}


def target_config(folder: Path) -> ModelConfig:
    """Configuration of the target in `folder`. Raises CheckpointError for an architecture without an entry here."""
    config = model_config(read_hf_config(folder))
    if config.architecture not in TARGETS:
        raise CheckpointError(
            f"{folder}/config.json: architecture {config.architecture!r} is not supported; "
            f"supported: {', '.join(sorted(TARGETS))}"
        )
    return config


def load_target(folder: Path, config: ModelConfig, backend: DeviceBackend, max_model_len: int) -> TargetModel:
    """Build the target of `folder` on `backend`. Raises CheckpointError for missing or misshapen tensors."""
    with Checkpoint(folder) as checkpoint:
        return TARGETS[config.architecture](config, checkpoint, backend, max_model_len)
