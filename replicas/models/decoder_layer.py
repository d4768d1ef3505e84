"""One decoder layer's weights, and how they are read: the tensor names that Llama's whole family shares."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.devices.device_backend import DeviceBackend, Elementwise, Linear
from replicas.models.checkpoint import Checkpoint
from replicas.models.model_config import ModelConfig
from replicas.models.padding import PaddedSize


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Placed on the device."""

    input_norm: Tensor
    qkv: Linear
    """[rows, in] -> [rows, (heads + 2 * kv_heads) * head_dim], not yet rotated."""
    output: Linear
    post_attention_norm: Tensor
    gate_up: Linear
    silu: Elementwise
    down: Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Reads the tensors whose names begin with `prefix`. All methods raise CheckpointError for a bad tensor."""

    checkpoint: Checkpoint
    backend: DeviceBackend
    config: ModelConfig
    hidden: PaddedSize
    prefix: str
    norm_offset: float = 0.0
    """Added to the weights of norms, for checkpoints that store them less 1 (Qwen3-Next)."""

    def layer(self, qkv: Linear, output_bias: bool) -> DecoderLayer:
        """The layer around `qkv`."""
        config, hidden = self.config, self.hidden
        mlp, heads = config.intermediate_size, config.num_heads * config.head_dim
        return DecoderLayer(
            input_norm=self.norm("input_layernorm", hidden),
            qkv=qkv,
            output=self.linear({"self_attn.o_proj": hidden}, heads, output_bias),
            post_attention_norm=self.norm("post_attention_layernorm", hidden),
            gate_up=self.linear({"mlp.gate_proj": mlp, "mlp.up_proj": mlp}, hidden, config.mlp_bias),
            silu=self.backend.silu,
            down=self.linear({"mlp.down_proj": hidden}, mlp, config.mlp_bias),
        )

    def qkv(self, in_size: PaddedSize, bias: bool) -> Linear:
        """Queries, keys and values from one product."""
        heads, kv_heads = (count * self.config.head_dim for count in (self.config.num_heads, self.config.num_kv_heads))
        outs = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads, "self_attn.v_proj": kv_heads}
        return self.linear(outs, in_size, bias)

    def linear(self, outs: Mapping[str, int | PaddedSize], in_size: int | PaddedSize, bias: bool = False) -> Linear:
        """One product with the weights (and biases) of all of `outs`, stacked."""
        weights = [self.checkpoint.tensor(f"{self.prefix}{name}.weight", out, in_size) for name, out in outs.items()]
        biases = [self.checkpoint.tensor(f"{self.prefix}{name}.bias", out) for name, out in outs.items() if bias]
        return self.backend.linear(torch.cat(weights), torch.cat(biases) if bias else None)

    def norm(self, name: str, size: PaddedSize) -> Tensor:
        """Weight of an RMS norm over `size`; its epsilon must be `size.epsilon(...)`."""
        return self.backend.place(size.norm_weight(self.norm_weight(name, size)))

    def norm_weight(self, name: str, size: int | PaddedSize) -> Tensor:
        """The same, neither scaled nor placed."""
        weight = self.checkpoint.tensor(f"{self.prefix}{name}.weight", size)
        return weight + self.norm_offset if self.norm_offset else weight
