"""The EAGLE3 head: one decoder layer over [embedding, target state], with a vocabulary of its own."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices.device_backend import DeviceBackend
from replicas.errors import CheckpointError
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.checkpoint import Checkpoint
from replicas.models.layers import AttentionInputs, RotaryEmbedding, gated_mlp, paged_attention, rms_norm, rotate
from replicas.models.model_config import ModelConfig, model_config
from replicas.models.source import read_hf_config


class Eagle3Head:
    """Weights in the layout of SafeAILab and AngelSlim (second seed, section 3.2).

    fc [H, 3H] fuses the tapped states; q, k and v read 2H: [norm(embedding), norm(state)]; the residual is the
    state itself, before its norm. The state before the last norm is what the next draft step takes as its state.
    """

    def __init__(
        self, folder: Path, target: ModelConfig, embedding: Tensor, backend: DeviceBackend, max_model_len: int
    ) -> None:
        hf_config = read_hf_config(folder)
        self.config = config = model_config(hf_config)
        self.tapped_layers = tapped_layers(folder, hf_config, target)
        hidden, mlp, vocab = config.hidden_size, config.intermediate_size, target.vocab_size
        if hidden != target.hidden_size:
            raise CheckpointError(
                f"{folder}/config.json: hidden_size is {hidden}, but the target's is {target.hidden_size}"
            )
        heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        draft_vocab = int(getattr(hf_config, "draft_vocab_size", None) or vocab)
        with Checkpoint(folder) as checkpoint:
            self._epsilon = config.rms_norm_eps
            layer, attention = "midlayer.", "midlayer.self_attn."
            own = checkpoint.optional("embed_tokens.weight", vocab, hidden)
            self._embedding = embedding if own is None else backend.place(own)
            self._fc = backend.linear(checkpoint.tensor("fc.weight", hidden, len(self.tapped_layers) * hidden))
            qkv = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)]
            self._qkv = backend.linear(
                torch.cat([checkpoint.tensor(f"{attention}{name}.weight", out, 2 * hidden) for name, out in qkv])
            )
            self._output = backend.linear(checkpoint.tensor(attention + "o_proj.weight", hidden, heads))
            gate_up = [checkpoint.tensor(f"{layer}mlp.{name}.weight", mlp, hidden) for name in ("gate_proj", "up_proj")]
            self._gate_up = backend.linear(torch.cat(gate_up))
            self._down = backend.linear(checkpoint.tensor(layer + "mlp.down_proj.weight", hidden, mlp))
            self._embedding_norm, self._hidden_norm, self._mlp_norm, self._norm = (
                backend.place(checkpoint.tensor(name, hidden))
                for name in (
                    layer + "input_layernorm.weight",
                    layer + "hidden_norm.weight",
                    layer + "post_attention_layernorm.weight",
                    "norm.weight",
                )
            )
            self._head = backend.linear(checkpoint.tensor("lm_head.weight", draft_vocab, hidden))
            self._target_ids = backend.place(target_ids_of_drafts(checkpoint, draft_vocab, vocab))
        self.rotary = RotaryEmbedding(config, max_model_len, backend)

    def fuse(self, hidden_states: Tensor) -> Tensor:
        """Tapped states [rows, taps * hidden] to one state a row [rows, hidden]."""
        return self._fc(hidden_states)

    def forward(self, token_ids: Tensor, states: Tensor, attention: AttentionInputs, cache: PagedCache) -> Tensor:
        """New states [rows, hidden] from `token_ids` [rows] and the `states` [rows, hidden] of the tokens before."""
        embedded = functional.embedding(token_ids, self._embedding)
        embedded = rms_norm(embedded, self._embedding_norm, self._epsilon)
        normed = rms_norm(states, self._hidden_norm, self._epsilon)
        heads = self._qkv(torch.cat([embedded, normed], -1)).view(states.shape[0], -1, self.config.head_dim)
        hidden = states + self._output(paged_attention(rotate(heads, attention), 0, cache, attention))
        return hidden + gated_mlp(rms_norm(hidden, self._mlp_norm, self._epsilon), self._gate_up, self._down)

    def draft(self, states: Tensor) -> Tensor:
        """The most likely next token [rows] int32, as a target id, after each of `states` [rows, hidden]."""
        best = self._head(rms_norm(states, self._norm, self._epsilon)).argmax(-1)
        return self._target_ids[best]


def target_ids_of_drafts(checkpoint: Checkpoint, draft_vocab: int, vocab: int) -> Tensor:
    """Target id [draft vocab] int32 of each draft id: id + d2t[id] (second seed, section 3.2).

    Raises CheckpointError if the vocabulary is reduced and the map is absent or leaves the target's vocabulary.
    """
    ids = torch.arange(draft_vocab)
    if "d2t" in checkpoint:
        ids = ids + checkpoint.tensor("d2t", draft_vocab)
    elif draft_vocab != vocab:
        raise CheckpointError(
            f"{checkpoint.folder} drafts {draft_vocab} of {vocab} tokens (draft_vocab_size) but has no tensor 'd2t'"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise CheckpointError(f"{checkpoint.folder}: tensor 'd2t' maps outside the target's {vocab} tokens")
    return ids.to(torch.int32)


def tapped_layers(folder: Path, hf_config: Any, target: ModelConfig) -> tuple[int, ...]:
    """Target layers whose input the head was trained on; an early, a middle and a late one unless its config says."""
    count = target.num_layers
    layers = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None) or target.default_tapped_layers
    layers = tuple(int(layer) for layer in layers)
    if not all(0 <= layer <= count for layer in layers):
        raise CheckpointError(
            f"{folder}/config.json: eagle_aux_hidden_state_layer_ids is {list(layers)}, but the target has "
            f"the inputs of layers 0 to {count - 1} and, as {count}, the output of the last"
        )
    return layers
