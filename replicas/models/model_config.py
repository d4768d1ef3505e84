"""The shape of a decoder, read from a Hugging Face config."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from replicas.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the layers need to know; sizes in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rope_inverse_frequencies: tuple[float, ...]
    rope_attention_scaling: float
    max_exact_positions: int | None
    """Longer sequences would need other RoPE frequencies or a sliding window, which are not built; None: any length."""
    eos_token_ids: tuple[int, ...]

    @property
    def default_tapped_layers(self) -> tuple[int, int, int]:
        """An early, a middle and a late layer (first seed, "Auxiliary Hidden State Extraction")."""
        return 2, self.num_layers // 2, self.num_layers - 3

    @property
    def max_positions(self) -> int:
        """Tokens up to which a drafter is what its config says. Nobody drafts from the KV that it writes beyond."""
        exact = self.max_exact_positions
        return self.max_position_embeddings if exact is None else min(self.max_position_embeddings, exact)

    @property
    def query_group(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads


def model_config(hf_config: PreTrainedConfig) -> ModelConfig:
    """Translate `hf_config`. Raises CheckpointError for a field that is missing or not supported."""
    architectures = getattr(hf_config, "architectures", None) or []
    if not architectures:
        raise CheckpointError(f"config.json of a {hf_config.model_type!r} model names no 'architectures'")

    def field(name: str, default: Any = None) -> Any:
        value = getattr(hf_config, name, None)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"config.json has no field {name!r}")
        return value

    if field("hidden_act", "silu") != "silu":
        raise CheckpointError(f"config.json: hidden_act is {hf_config.hidden_act!r}; only 'silu' is supported")
    heads = int(field("num_attention_heads"))
    kv_heads = int(field("num_key_value_heads", heads))
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    eos = field("eos_token_id", ())
    head_dim = int(field("head_dim", int(field("hidden_size")) // heads))
    inverse_frequencies, scaling = rope_frequencies(hf_config, head_dim)
    return ModelConfig(
        architecture=architectures[0],
        vocab_size=int(field("vocab_size")),
        hidden_size=int(field("hidden_size")),
        intermediate_size=int(field("intermediate_size")),
        num_layers=int(field("num_hidden_layers")),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=float(field("rms_norm_eps")),
        max_position_embeddings=int(field("max_position_embeddings")),
        tie_word_embeddings=bool(field("tie_word_embeddings", False)),
        attention_bias=bool(field("attention_bias", False)),
        mlp_bias=bool(field("mlp_bias", False)),
        rope_inverse_frequencies=tuple(inverse_frequencies.tolist()),
        rope_attention_scaling=scaling,
        max_exact_positions=max_exact_positions(hf_config),
        eos_token_ids=(eos,) if isinstance(eos, int) else tuple(eos),
    )


def rope_frequencies(hf_config: PreTrainedConfig, head_dim: int) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] float32 and the attention scaling of `hf_config`'s RoPE variant."""
    rope, kind = rope_parameters(hf_config)
    if kind == "default":
        theta = float(rope.get("rope_theta", 10000.0))
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies, scaling = 1.0 / theta**exponents, 1.0
    elif kind in ROPE_INIT_FUNCTIONS:
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](hf_config, torch.device("cpu"))
    else:
        known = sorted(["default", *ROPE_INIT_FUNCTIONS])
        raise CheckpointError(f"config.json: rope_type is {kind!r}; known are {known}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0 or len(frequencies) != head_dim // 2:
        raise CheckpointError(
            f"config.json: RoPE turns {2 * len(frequencies)} of the {head_dim} elements of a head (rope_parameters, "
            f"partial_rotary_factor {rope.get('partial_rotary_factor', 1.0)}); only whole heads are supported"
        )
    return frequencies, float(scaling)


def max_exact_positions(hf_config: PreTrainedConfig) -> int | None:
    """Longest sequence for which one set of frequencies and full attention are what `hf_config` describes."""
    rope, kind = rope_parameters(hf_config)
    limits: list[int] = []
    if kind == "dynamic":
        limits.append(hf_config.max_position_embeddings)
    elif kind == "longrope":
        limits.append(rope["original_max_position_embeddings"])
    if "sliding_attention" in (getattr(hf_config, "layer_types", None) or ()):
        limits.append(int(getattr(hf_config, "sliding_window", None) or 0))
    return min(limits, default=None)


def rope_parameters(hf_config: PreTrainedConfig) -> tuple[dict[str, Any], str]:
    """The RoPE fields of `hf_config` and their variant."""
    rope: dict[str, Any] = getattr(hf_config, "rope_parameters", None) or {}
    return rope, rope.get("rope_type", "default")
