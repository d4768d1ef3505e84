"""The EAGLE3 head without a cache, one sequence at a time: every draft attends anew over everything before it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.reference.decoding import layer_inputs


class Expected:
    """Drafts by the naive head, with the target's states from transformers at `layers` (by default the config's)."""

    def __init__(
        self,
        reference: LlamaForCausalLM,
        tensors: Mapping[str, Tensor],
        config: Mapping[str, Any],
        layers: Sequence[int] | None = None,
    ) -> None:
        self._reference = reference
        self._head = NaiveEagle3(tensors, config, reference.model.embed_tokens.weight.detach())
        self._layers = layers or config["eagle_aux_hidden_state_layer_ids"]

    def drafts(self, token_ids: tuple[int, ...], count: int) -> tuple[int, ...]:
        """After `token_ids`, the last of which the target has just chosen."""
        states = layer_inputs(self._reference, token_ids[:-1])
        taps = torch.cat([states[layer] for layer in self._layers], -1)
        return tuple(self._head.drafts(taps, token_ids[1:], count))


class NaiveEagle3:
    """Drafts from tensors named as in the checkpoint; `embedding` [vocab, hidden] is the target's."""

    def __init__(self, tensors: Mapping[str, Tensor], config: Mapping[str, Any], embedding: Tensor) -> None:
        self._tensors = tensors
        self._config = config
        self._embedding = tensors.get("embed_tokens.weight", embedding)
        self._frequencies = config["rope_theta"] ** -(torch.arange(0, config["head_dim"], 2) / config["head_dim"])

    def drafts(self, taps: Tensor, next_token_ids: Sequence[int], count: int) -> list[int]:
        """`count` drafts after `next_token_ids` [tokens], which follow the tapped states [tokens, taps * hidden].

        The features are the target's for as long as it has any, then the head's own states.
        """
        return [self._target_id(row) for row in self.logits(taps, next_token_ids, count)]

    def logits(
        self, taps: Tensor, next_token_ids: Sequence[int], count: int, forced: Sequence[int] | None = None
    ) -> Tensor:
        """Logits [count, draft vocab] of those drafts; `forced` are read on instead of the drafts, where given."""
        taps = taps.to(self._embedding.dtype)
        if self._config.get("norm_before_fc"):
            taps = self._norm(taps, "input_norm.weight")
        features = taps @ self._tensors["fc.weight"].T
        token_ids, rows = list(next_token_ids), list[Tensor]()
        for step in range(count):
            state = self._layer(features, torch.tensor(token_ids))[-1]
            normed = self._norm(state, "norm.weight")
            rows.append(self._tensors["lm_head.weight"] @ normed)
            token_ids.append(self._target_id(rows[-1]) if forced is None else forced[step])
            fed_back = normed if self._config.get("norm_output") else state
            features = torch.cat([features, fed_back[None]])
        return torch.stack(rows)

    def _target_id(self, logits: Tensor) -> int:
        draft = int(logits.argmax())
        return draft + int(self._tensors["d2t"][draft]) if "d2t" in self._tensors else draft

    def _product(self, rows: Tensor, name: str) -> Tensor:
        product = rows @ self._tensors[f"{name}.weight"].T
        return product + self._tensors[f"{name}.bias"] if f"{name}.bias" in self._tensors else product

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        variance = hidden.square().mean(-1, keepdim=True)
        return hidden * torch.rsqrt(variance + self._config["rms_norm_eps"]) * self._tensors[name]

    def _layer(self, features: Tensor, token_ids: Tensor) -> Tensor:
        """States [tokens, hidden] with full causal attention; the token at position p is the one after feature p."""
        heads, kv_heads = self._config["num_attention_heads"], self._config["num_key_value_heads"]
        count, head_dim = len(token_ids), self._config["head_dim"]
        embedded = self._norm(self._embedding[token_ids], "midlayer.input_layernorm.weight")
        normed = self._norm(features, "midlayer.hidden_norm.weight")
        residual = normed if self._config.get("norm_before_residual") else features
        both = torch.cat([embedded, normed], -1)
        queries, keys, values = (
            self._product(both, f"midlayer.self_attn.{name}_proj").view(count, size, head_dim)
            for name, size in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        queries, keys = self._rotated(queries), self._rotated(keys).repeat_interleave(heads // kv_heads, 1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) * head_dim**-0.5
        scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), -torch.inf)
        values = values.repeat_interleave(heads // kv_heads, 1)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).reshape(count, -1)
        hidden = residual + self._product(attended, "midlayer.self_attn.o_proj")
        normed = self._norm(hidden, "midlayer.post_attention_layernorm.weight")
        gate, up = (normed @ self._tensors[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return hidden + (torch.nn.functional.silu(gate) * up) @ self._tensors["midlayer.mlp.down_proj.weight"].T

    def _rotated(self, heads: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(len(heads)).float(), self._frequencies)[:, None]
        first, second = heads.chunk(2, -1)
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
