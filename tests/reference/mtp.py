"""Multi-token prediction without a cache, on transformers' own layers, and its tensors as checkpoints name them."""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM

from tests.reference.tiny_checkpoints import HIDDEN, random_target

Family = Literal["deepseek", "qwen3_next"]
EPSILON = 1e-6


class NaiveMtp:
    """A random layer for `target`; every draft runs it anew over the whole text."""

    def __init__(self, target: LlamaForCausalLM, family: Family = "deepseek", seed: int = 11) -> None:
        self._target = target
        self._family: Family = family
        block: Any = random_target(seed, model_type=target.config.model_type, num_hidden_layers=1).model
        self._norm: Tensor = block.norm.weight.detach()
        block.norm = nn.Identity()
        self._block = block
        generator = torch.Generator().manual_seed(seed)
        self._embedding_norm, self._hidden_norm = (1 + 0.3 * torch.randn(2, HIDDEN, generator=generator)).unbind(0)
        self._projection = torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) * HIDDEN**-0.5
        self.embedding = target.model.embed_tokens.weight.detach()
        self.head = target.lm_head.weight.detach()

    @torch.no_grad()
    def drafts(self, token_ids: tuple[int, ...], count: int) -> tuple[int, ...]:
        """After `token_ids`, the last of which the target has just chosen."""
        states = self._target.model(torch.tensor([token_ids[:-1]]), use_cache=False).last_hidden_state[0]
        tokens, found = list(token_ids[1:]), list[int]()
        for _ in range(count):
            embedded = rms_norm(self.embedding[torch.tensor(tokens)], self._embedding_norm)
            both = torch.cat([embedded, rms_norm(states, self._hidden_norm)], -1)
            mixed = (both @ self._projection.T)[None]
            state = self._block(inputs_embeds=mixed, use_cache=False).last_hidden_state[0, -1]
            normed = rms_norm(state, self._norm)
            found.append(int((self.head @ normed).argmax()))
            tokens.append(found[-1])
            states = torch.cat([states, (normed if self._family == "qwen3_next" else state)[None]])
        return tuple(found)

    def tensors(self) -> dict[str, Tensor]:
        """Named as in DeepSeek-V3 and GLM-4 MoE, or as in Qwen3-Next, whose norms are stored less 1."""
        layer = {name: value.detach().clone() for name, value in self._block.layers[0].state_dict().items()}
        if self._family == "deepseek":
            prefix = f"model.layers.{self._target.config.num_hidden_layers}."
            return {
                **{f"{prefix}{name}": value for name, value in layer.items()},
                f"{prefix}enorm.weight": self._embedding_norm,
                f"{prefix}hnorm.weight": self._hidden_norm,
                f"{prefix}eh_proj.weight": self._projection,
                f"{prefix}shared_head.norm.weight": self._norm,
            }
        return {
            **{f"mtp.layers.0.{name}": value - float("norm" in name) for name, value in layer.items()},
            "mtp.pre_fc_norm_embedding.weight": self._embedding_norm - 1,
            "mtp.pre_fc_norm_hidden.weight": self._hidden_norm - 1,
            "mtp.fc.weight": self._projection,
            "mtp.norm.weight": self._norm - 1,
        }

    def write(self, folder: Path) -> None:
        """A checkpoint with nothing but the layer."""
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self._target.config.to_dict() | {"num_nextn_predict_layers": 1}))
        save_tensors(folder, self.tensors())


def save_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write them as the checkpoint of `folder`."""
    save_file({name: value.clone() for name, value in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def add_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Put `tensors` into the checkpoint of `folder`, beside what it holds."""
    save_tensors(folder, {**load_file(folder / "model.safetensors"), **tensors})


def rms_norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(hidden, (hidden.shape[-1],), weight, EPSILON)
