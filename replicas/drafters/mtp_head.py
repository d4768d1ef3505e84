"""A multi-token prediction layer in DeepSeek-V3's form, from a checkpoint of its own or from the target's."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from replicas.devices.device_backend import DeviceBackend
from replicas.errors import CheckpointError
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.checkpoint import Checkpoint
from replicas.models.decoder_layer import LayerWeights
from replicas.models.layers import AttentionInputs, rms_norm
from replicas.models.padding import PaddedSize
from replicas.models.registry import TargetModel
from replicas.models.sharding import RankSlice
from replicas.models.vocabulary import Embedding, VocabularyHead, vocabulary_part


@dataclass(frozen=True, slots=True)
class Layout:
    """What a family calls the tensors of its MTP layer, and where its arithmetic differs."""

    prefix: str
    block: str
    """Prefix of the decoder layer's own tensors."""
    next_block: str
    """Prefix that a second MTP layer would have."""
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str
    embedding: str
    head: str
    """Of the layer's own embedding and head, which are the target's unless the checkpoint holds others."""
    norm_offset: float
    norms_output: bool
    """The next draft step reads the state after the last norm, not before it."""


def deepseek(layer: int) -> Layout:
    """DeepSeek-V3 and GLM-4 MoE: layer `num_hidden_layers` of the target (vLLM's deepseek_mtp.py, glm4_moe_mtp.py)."""
    prefix = f"model.layers.{layer}."
    return Layout(
        prefix=prefix,
        block=prefix,
        next_block=f"model.layers.{layer + 1}.",
        embedding_norm="enorm",
        hidden_norm="hnorm",
        projection="eh_proj",
        norm="shared_head.norm",
        embedding="embed_tokens.weight",
        head="shared_head.head.weight",
        norm_offset=0.0,
        norms_output=False,
    )


QWEN3_NEXT = Layout(
    prefix="mtp.",
    block="mtp.layers.0.",
    next_block="mtp.layers.1.",
    embedding_norm="pre_fc_norm_embedding",
    hidden_norm="pre_fc_norm_hidden",
    projection="fc",
    norm="norm",
    embedding="embed_tokens.weight",
    head="lm_head.weight",
    norm_offset=1.0,
    norms_output=True,
)
"""vLLM's qwen3_next_mtp.py; its norms multiply by 1 + weight."""


class MtpHead:
    """One more layer of the target's architecture, over a projection of [norm(embedding), norm(state)].

    Embedding, head and rotation are the target's, unless the checkpoint holds another embedding or head. The state is
    the target's normed last one at first, then the layer's own: one layer, chained (DeepSeek-V3 report, section 2.2;
    second seed, section 4.2). vLLM zeroes the embedding at position 0, which the report does not.
    """

    def __init__(self, folder: Path, target: TargetModel, backend: DeviceBackend) -> None:
        config = target.config
        self._target = target
        hidden = PaddedSize.rounded_up(config.hidden_size, backend.hidden_multiple)
        self._epsilon = hidden.epsilon(config.rms_norm_eps)
        with Checkpoint(folder) as checkpoint:
            layout = find_layout(checkpoint, config.num_layers)
            refuse_unsupported(checkpoint, layout)
            others = LayerWeights(checkpoint, backend, config, hidden, layout.prefix, layout.norm_offset)
            block = LayerWeights(checkpoint, backend, config, hidden, layout.block, layout.norm_offset)
            self._embedding_norm = others.norm(layout.embedding_norm, hidden)
            self._hidden_norm = others.norm(layout.hidden_norm, hidden)
            # Embedding and state lie side by side, and each is padded.
            self._projection = others.linear({layout.projection: hidden}, hidden.times(2))
            self._layer = target.load_layer(block)
            self._norm = others.norm(layout.norm, hidden)
            vocab = vocabulary_part(config.vocab_size, backend)
            embedding = own_or_none(
                checkpoint, layout.prefix + layout.embedding, "model.embed_tokens.weight", vocab, hidden
            )
            head = own_or_none(checkpoint, layout.prefix + layout.head, "lm_head.weight", vocab, hidden)
            refuse_unread(checkpoint, layout)
        self._embedding = target.embedding if embedding is None else Embedding(embedding, backend)
        self._best = target.best if head is None else VocabularyHead(head, config.vocab_size, backend).best
        self._norms_output = layout.norms_output

    def forward(self, token_ids: Tensor, states: Tensor, attention: AttentionInputs, cache: PagedCache) -> Tensor:
        """New states [rows, hidden] from `token_ids` [rows] and the `states` [rows, hidden] of the tokens before."""
        embedded = self._embedding(token_ids)
        both = (
            rms_norm(embedded, self._embedding_norm, self._epsilon),
            rms_norm(states, self._hidden_norm, self._epsilon),
        )
        hidden = self._target.run_layer(self._layer, 0, self._projection(torch.cat(both, -1)), attention, cache)
        return rms_norm(hidden, self._norm, self._epsilon) if self._norms_output else hidden

    def draft(self, states: Tensor) -> Tensor:
        """The most likely next token [rows] int32 after each of `states` [rows, hidden]."""
        normed = states if self._norms_output else rms_norm(states, self._norm, self._epsilon)
        return self._best(normed)


def find_layout(checkpoint: Checkpoint, num_layers: int) -> Layout:
    """The layout whose projection `checkpoint` holds, for a target of `num_layers`. Raises CheckpointError."""
    layouts = [deepseek(num_layers), QWEN3_NEXT]
    for layout in layouts:
        if f"{layout.prefix}{layout.projection}.weight" in checkpoint:
            return layout
    wanted = " nor ".join(repr(f"{layout.prefix}{layout.projection}.weight") for layout in layouts)
    raise CheckpointError(
        f"{checkpoint.folder} holds no MTP layer for a target of {num_layers} layers: neither tensor {wanted} "
        f"(DeepSeek-V3 and GLM-4 MoE; Qwen3-Next)"
    )


def refuse_unsupported(checkpoint: Checkpoint, layout: Layout) -> None:
    """Raises CheckpointError for experts and for a second MTP layer, which would draft differently."""
    experts = next((name for name in sorted(checkpoint) if name.startswith(f"{layout.block}mlp.experts.")), None)
    if experts is not None:
        raise CheckpointError(
            f"{checkpoint.folder} holds tensor {experts!r}: MTP layers with experts are not supported, only dense ones"
        )
    second = next((name for name in sorted(checkpoint) if name.startswith(layout.next_block)), None)
    if second is not None:
        raise CheckpointError(
            f"{checkpoint.folder} holds tensor {second!r} of a second MTP layer; only one, chained, is supported"
        )


def own_or_none(
    checkpoint: Checkpoint, name: str, shared_name: str, vocab: RankSlice, hidden: PaddedSize
) -> Tensor | None:
    """Tensor `name` [vocab, hidden], or None where there is none or it is a copy of the target's `shared_name`."""
    own = checkpoint.optional(name, vocab, hidden)
    if own is None:
        return None
    shared = checkpoint.optional(shared_name, vocab, hidden)
    return None if shared is not None and torch.equal(own, shared) else own


def refuse_unread(checkpoint: Checkpoint, layout: Layout) -> None:
    """Raises CheckpointError for a tensor of the layer that nobody read: it would draft differently."""
    of_layer = [name for name in checkpoint.unread if name.startswith(layout.prefix)]
    unread = next((name for name in of_layer if not name.endswith("rotary_emb.inv_freq")), None)
    if unread is not None:
        raise CheckpointError(
            f"{checkpoint.folder} holds tensor {unread!r}, which no supported MTP layer of its target has"
        )
