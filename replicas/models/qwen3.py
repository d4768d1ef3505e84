"""Qwen3: Llama whose queries and keys are normed, head by head, before they rotate."""

import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices.device_backend import Linear
from replicas.models.decoder_layer import LayerWeights
from replicas.models.llama import LlamaModel


class Qwen3Model(LlamaModel):
    """All else is Llama's; `head_dim` of its checkpoints is not hidden_size / num_attention_heads."""

    def load_qkv(self, weights: LayerWeights) -> Linear:
        """The product, then RMSNorm over each head of queries and keys; values stay."""
        config = weights.share.config(self.config)
        project = super().load_qkv(weights)
        query, key = (weights.norm_weight(f"self_attn.{name}", config.head_dim) for name in ("q_norm", "k_norm"))
        scale = weights.backend.place(
            torch.cat([query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)])
        )

        def normed_heads(rows: Tensor) -> Tensor:
            heads = project(rows).view(rows.shape[0], -1, config.head_dim)
            turning, values = heads[:, : len(scale)], heads[:, len(scale) :]
            normed = functional.rms_norm(turning, (config.head_dim,), None, config.rms_norm_eps) * scale
            return torch.cat([normed, values], 1).flatten(1)

        return normed_heads
