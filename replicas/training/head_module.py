"""The EAGLE3 draft head as a module to train: one decoder layer over fused target states, a small vocabulary.

Parameter names are those of the exported checkpoint (SafeAILab layout), so that `state_dict` is the export.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from replicas.models.model_config import ModelConfig

NUM_TAPS = 3
"""Tapped target states that `fc` fuses (first seed, "Eagle3 Draft Model Architecture")."""


class HeadAttention(nn.Module):
    """Projections of the attention; queries, keys and values read embedding and state side by side (2 * hidden)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, heads, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, kv_heads, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, kv_heads, bias=False)
        self.o_proj = nn.Linear(heads, config.hidden_size, bias=False)


class HeadMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class HeadLayer(nn.Module):
    """The single decoder layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = HeadAttention(config)
        self.mlp = HeadMlp(config)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)


class DraftHead(nn.Module):
    """The head in pieces; who attends to what is the caller's (`unroll` in training).

    All rows are float32; under autocast only the products round, so that residuals and losses keep their precision.
    """

    tap_scale: Tensor

    def __init__(self, config: ModelConfig, draft_vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(NUM_TAPS * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = HeadLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, draft_vocab_size, bias=False)
        # A few channels of the taps are hundreds of times larger than the rest: one learning rate fits them only
        # once they are scaled. The export folds the scale into fc.
        self.register_buffer("tap_scale", torch.ones(NUM_TAPS * config.hidden_size))
        self._frequencies = torch.tensor(config.rope_inverse_frequencies, dtype=torch.float32)

    def fuse(self, taps: Tensor) -> Tensor:
        """Target states [rows, 3 * hidden] -> hidden states [rows, hidden] of the first draft step."""
        return self.fc(taps / self.tap_scale).to(taps.dtype)

    def mix(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """What attention reads, [rows, 2 * hidden]: the next token's embedding beside the hidden state, each normed."""
        return torch.cat([self.midlayer.input_layernorm(embeddings), self.midlayer.hidden_norm(hidden)], -1)

    def queries(self, mixed: Tensor, positions: Tensor) -> Tensor:
        """Rotated queries [rows, heads, head_dim]."""
        return self._rotate(self.midlayer.self_attn.q_proj(mixed), positions)

    def keys_values(self, mixed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and plain values, [rows, kv_heads, head_dim] each."""
        keys = self._rotate(self.midlayer.self_attn.k_proj(mixed), positions)
        return keys, self.midlayer.self_attn.v_proj(mixed).view_as(keys)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [rows, hidden], before the norm: the next draft step's hidden state.

        `hidden` is the layer's input as it came, not normed: the residual of SafeAILab's and vLLM's heads.
        """
        hidden = hidden + self.midlayer.self_attn.o_proj(attended.flatten(1))
        return hidden + self.midlayer.mlp(self.midlayer.post_attention_layernorm(hidden))

    def _rotate(self, projected: Tensor, positions: Tensor) -> Tensor:
        heads = projected.view(projected.shape[0], -1, self.config.head_dim)
        angles = torch.outer(positions.float(), self._frequencies)[:, None]
        cosines, sines = angles.cos(), angles.sin()
        if self.config.rope_attention_scaling != 1.0:
            cosines, sines = cosines * self.config.rope_attention_scaling, sines * self.config.rope_attention_scaling
        first, second = heads.chunk(2, -1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
