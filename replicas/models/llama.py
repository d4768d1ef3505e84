"""The Llama decoder over paged KV, tapping the hidden states that EAGLE3 drafts from."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices.device_backend import DeviceBackend, Linear
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.checkpoint import Checkpoint
from replicas.models.layers import AttentionInputs, RotaryEmbedding, gated_mlp, paged_attention, rms_norm, rotate
from replicas.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One block's weights, placed on the device."""

    input_norm: Tensor
    qkv: Linear
    output: Linear
    post_attention_norm: Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """Llama: RMSNorm, rotary GQA attention, SwiGLU; tied or untied head, optional biases."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, backend: DeviceBackend, max_model_len: int) -> None:
        self.config = config
        self._tapped_layers: tuple[int, ...] = ()
        self.rotary = RotaryEmbedding(config, max_model_len, backend)
        vocab, hidden = config.vocab_size, config.hidden_size
        embedding = checkpoint.tensor("model.embed_tokens.weight", vocab, hidden)
        self.embedding = backend.place(embedding)
        self._layers = [
            self._load_layer(checkpoint, backend, f"model.layers.{index}.") for index in range(config.num_layers)
        ]
        self._norm = backend.place(checkpoint.tensor("model.norm.weight", hidden))
        head = embedding if config.tie_word_embeddings else checkpoint.tensor("lm_head.weight", vocab, hidden)
        self._head = backend.linear(head)

    def _load_layer(self, checkpoint: Checkpoint, backend: DeviceBackend, prefix: str) -> LlamaLayer:
        config = self.config
        hidden, mlp = config.hidden_size, config.intermediate_size
        heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        qkv = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads, "self_attn.v_proj": kv_heads}

        def stacked(outs: dict[str, int], in_size: int, has_bias: bool) -> Linear:
            weights = [checkpoint.tensor(f"{prefix}{name}.weight", out, in_size) for name, out in outs.items()]
            biases = [checkpoint.tensor(f"{prefix}{name}.bias", out) for name, out in outs.items() if has_bias]
            return backend.linear(torch.cat(weights), torch.cat(biases) if has_bias else None)

        return LlamaLayer(
            input_norm=backend.place(checkpoint.tensor(prefix + "input_layernorm.weight", hidden)),
            qkv=stacked(qkv, hidden, config.attention_bias),
            output=stacked({"self_attn.o_proj": hidden}, heads, config.attention_bias),
            post_attention_norm=backend.place(checkpoint.tensor(prefix + "post_attention_layernorm.weight", hidden)),
            gate_up=stacked({"mlp.gate_proj": mlp, "mlp.up_proj": mlp}, hidden, config.mlp_bias),
            down=stacked({"mlp.down_proj": hidden}, mlp, config.mlp_bias),
        )

    def tap(self, layers: tuple[int, ...]) -> None:
        """Make `forward` return the input states of `layers` (first seed, "SupportsEagle3")."""
        self._tapped_layers = layers

    def forward(self, token_ids: Tensor, attention: AttentionInputs, cache: PagedCache) -> tuple[Tensor, Tensor | None]:
        """Run `token_ids` [batch, tokens] and write their KV.

        Returns the normed last hidden states [batch * tokens, hidden] and the tapped ones [batch * tokens,
        taps * hidden] (None without taps). A tap at layer i is the input of layer i (first seed, "Auxiliary
        Hidden State Extraction"); i = num_layers is the output of the last.
        """
        config = self.config
        hidden = functional.embedding(token_ids.flatten(), self.embedding)
        taps: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            if index in self._tapped_layers:
                taps[index] = hidden
            normed = rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
            heads = layer.qkv(normed).view(hidden.shape[0], -1, config.head_dim)
            hidden = hidden + layer.output(paged_attention(rotate(heads, attention), index, cache, attention))
            normed = rms_norm(hidden, layer.post_attention_norm, config.rms_norm_eps)
            hidden = hidden + gated_mlp(normed, layer.gate_up, layer.down)
        taps[len(self._layers)] = hidden
        tapped = torch.cat([taps[index] for index in self._tapped_layers], -1) if self._tapped_layers else None
        return rms_norm(hidden, self._norm, config.rms_norm_eps), tapped

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary scores [rows, vocab] of normed hidden states [rows, hidden]."""
        return self._head(hidden)
