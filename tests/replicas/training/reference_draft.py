"""Greedy drafting step by step, written from the checkpoint's tensors with no code of the project: the yardstick."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ReferenceHead:
    """Tensors by checkpoint name, the head's config.json and the target's embedding [vocabulary, hidden]."""

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    embedding: Tensor

    def draft_logits(self, taps: Tensor, tokens: list[int], steps: int, forced: list[int] | None = None) -> Tensor:
        """Draft logits [steps, draft vocabulary] after the target's states `taps` [n, 3 * hidden] of tokens[:n].

        `tokens` has n + 1 entries, the last being the target's newest, without a state. Each next step reads
        `forced[step]` where given (a target id), the best token of the step before otherwise.
        """
        states = list(taps.to(self.embedding.dtype) @ self._weight("fc").T)
        inputs = list(tokens[1:])
        rows: list[Tensor] = []
        for step in range(steps):
            hidden = self._last_row(torch.stack(states), inputs)
            logits = self._norm(hidden, "norm") @ self._weight("lm_head").T
            rows.append(logits)
            best = int(logits.argmax())
            drafted = best + int(self.tensors["d2t"][best])
            inputs.append(forced[step] if forced is not None else drafted)
            states.append(hidden)
        return torch.stack(rows)

    def draft(self, taps: Tensor, tokens: list[int], steps: int) -> list[int]:
        """Greedy draft tokens as target ids."""
        best = self.draft_logits(taps, tokens, steps).argmax(-1)
        return (best + self.tensors["d2t"][best]).tolist()

    def _last_row(self, states: Tensor, inputs: list[int]) -> Tensor:
        """The layer's output at the last position, by full causal attention over all positions."""
        heads, kv_heads, size = (
            int(self.config[k]) for k in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        embedded = self._norm(self.embedding[torch.tensor(inputs)], "midlayer.input_layernorm")
        mixed = torch.cat([embedded, self._norm(states, "midlayer.hidden_norm")], -1)
        query, key, value = (mixed @ self._weight(f"midlayer.self_attn.{name}_proj").T for name in "qkv")
        positions = torch.arange(len(inputs))
        turned = [self._rotary(key[:, h * size : (h + 1) * size], positions) for h in range(kv_heads)]
        attended: list[Tensor] = []
        for h in range(heads):
            group = h // (heads // kv_heads)
            row = self._rotary(query[:, h * size : (h + 1) * size], positions)[-1]
            weights = ((turned[group] @ row) / size**0.5).softmax(0)
            attended.append(weights @ value[:, group * size : (group + 1) * size])
        hidden = states[-1] + self._weight("midlayer.self_attn.o_proj") @ torch.cat(attended)
        normed = self._norm(hidden, "midlayer.post_attention_layernorm")
        gate = self._weight("midlayer.mlp.gate_proj") @ normed
        up = self._weight("midlayer.mlp.up_proj") @ normed
        return hidden + self._weight("midlayer.mlp.down_proj") @ (gate * torch.sigmoid(gate) * up)

    def _rotary(self, rows: Tensor, positions: Tensor) -> Tensor:
        half = rows.shape[-1] // 2
        theta = float(self.config["rope_parameters"]["rope_theta"])
        angles = positions[:, None].float() / theta ** (torch.arange(half).float() / half)
        first, second = rows[:, :half], rows[:, half:]
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
        )

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        scale = (rows.pow(2).mean(-1, keepdim=True) + float(self.config["rms_norm_eps"])).rsqrt()
        return rows * scale * self._weight(name)

    def _weight(self, name: str) -> Tensor:
        return self.tensors[name + ".weight"].to(self.embedding.dtype)
