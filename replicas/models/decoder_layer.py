"""One decoder layer's weights, and how they are read: the tensor names that Llama's whole family shares.

A rank keeps columns of what widens (queries, keys, values, gate, up) and rows of what narrows (output, down), whose
products the ranks add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.devices.device_backend import DeviceBackend, Elementwise, Linear
from replicas.models.checkpoint import Checkpoint, Size
from replicas.models.model_config import ModelConfig
from replicas.models.padding import PaddedSize
from replicas.models.sharding import RankShare, RankSlice


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Placed on the device."""

    input_norm: Tensor
    qkv: Linear
    """[rows, in] -> [rows, (heads + 2 * kv_heads) * head_dim] of this rank's heads, not yet rotated."""
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
        mlp = self.share.even(config.intermediate_size)
        return DecoderLayer(
            input_norm=self.norm("input_layernorm", hidden),
            qkv=qkv,
            output=self.summed("self_attn.o_proj", self.share.queries(config), output_bias),
            post_attention_norm=self.norm("post_attention_layernorm", hidden),
            gate_up=self.linear({"mlp.gate_proj": mlp, "mlp.up_proj": mlp}, hidden, config.mlp_bias),
            silu=self.backend.silu,
            down=self.summed("mlp.down_proj", mlp, config.mlp_bias),
        )

    def qkv(self, in_size: PaddedSize, bias: bool) -> Linear:
        """Queries, keys and values from one product."""
        heads, kv_heads = self.share.queries(self.config), self.share.keys(self.config)
        outs = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads, "self_attn.v_proj": kv_heads}
        return self.linear(outs, in_size, bias)

    @property
    def share(self) -> RankShare:
        """The parts of this rank."""
        return RankShare.of(self.backend.collectives)

    def summed(self, name: str, in_size: RankSlice, bias: bool) -> Linear:
        """A product back to the hidden size, added up over the ranks, each of which has a part of its inputs."""
        weight = self.checkpoint.tensor(f"{self.prefix}{name}.weight", self.hidden, in_size)
        added = self.checkpoint.tensor(f"{self.prefix}{name}.bias", self.hidden) if bias else None
        if added is not None and self.share.rank:
            # Once is enough; zeros and no absence, so that all ranks run the same program.
            added = torch.zeros_like(added)
        product, collectives = self.backend.linear(weight, added), self.backend.collectives
        return product if collectives.size == 1 else lambda rows: collectives.sum(product(rows))

    def linear(self, outs: Mapping[str, Size], in_size: Size, bias: bool = False) -> Linear:
        """One product with the weights (and biases) of all of `outs`, stacked."""
        weights = [self.checkpoint.tensor(f"{self.prefix}{name}.weight", out, in_size) for name, out in outs.items()]
        biases = [self.checkpoint.tensor(f"{self.prefix}{name}.bias", out) for name, out in outs.items() if bias]
        return self.backend.linear(torch.cat(weights), torch.cat(biases) if bias else None)

    def norm(self, name: str, size: PaddedSize) -> Tensor:
        """Weight of an RMS norm over `size`; its epsilon must be `size.epsilon(...)`."""
        return self.backend.place(size.norm_weight(self.norm_weight(name, size)))

    def norm_weight(self, name: str, size: Size) -> Tensor:
        """The same, neither scaled nor placed."""
        weight = self.checkpoint.tensor(f"{self.prefix}{name}.weight", size)
        return weight + self.norm_offset if self.norm_offset else weight
