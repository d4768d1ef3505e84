"""The EAGLE3 head: one decoder layer over [embedding, target state], with a vocabulary of its own."""

from pathlib import Path

import torch
from torch import Tensor

from replicas.devices.device_backend import DeviceBackend
from replicas.drafters.eagle3_config import read_eagle3_config
from replicas.errors import CheckpointError
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.checkpoint import Checkpoint
from replicas.models.decoder_layer import LayerWeights
from replicas.models.layers import AttentionInputs, RotaryEmbedding, gated_mlp, paged_attention, rms_norm, rotate
from replicas.models.model_config import ModelConfig
from replicas.models.padding import PaddedSize
from replicas.models.sharding import RankShare
from replicas.models.vocabulary import Embedding, VocabularyHead, vocabulary_part

LAYER_NAMES = ("midlayer.", "layers.0.")
"""Of SafeAILab and AngelSlim (second seed, section 3.2), and of speculators."""
UNUSED_NAMES = ("t2d", "rotary_emb.inv_freq")
"""Endings of tensors that trainers save and drafting does not need."""


class Eagle3Head:
    """A head on the device, whichever layout it came in.

    fc [H, 3H] fuses the tapped states; q, k and v read 2H: [norm(embedding), norm(state)]. Unless the config says
    otherwise, the residual is the state itself, and the next draft step takes the state before the last norm.
    """

    def __init__(
        self, folder: Path, target: ModelConfig, embedding: Embedding, backend: DeviceBackend, max_model_len: int
    ) -> None:
        head = read_eagle3_config(folder, target)
        self.config = config = head.decoder
        self.tapped_layers = head.tapped_layers
        self._norm_before_residual, self._norm_output = head.norm_before_residual, head.norm_output
        hidden = PaddedSize.rounded_up(config.hidden_size, backend.hidden_multiple)
        taps = PaddedSize.rounded_up(target.hidden_size, backend.hidden_multiple).times(len(head.tapped_layers))
        drafts = vocabulary_part(head.draft_vocab_size, backend)
        self._epsilon, self._taps_epsilon = hidden.epsilon(config.rms_norm_eps), taps.epsilon(config.rms_norm_eps)
        with Checkpoint(folder) as checkpoint:
            body, layer = prefixes(checkpoint)
            weights = LayerWeights(checkpoint, backend, config, hidden, layer)
            others = LayerWeights(checkpoint, backend, config, hidden, body)
            self._embedding = own_embedding(others, target, embedding)
            self._taps_norm = others.norm("input_norm", taps) if head.norm_before_fc else None
            self._fc = others.linear({"fc": hidden}, taps)
            # Embedding and state lie side by side, and each is padded.
            qkv = weights.qkv(hidden.times(2), bias=config.attention_bias)
            self._layer = weights.layer(qkv, output_bias=config.attention_bias)
            self._hidden_norm = weights.norm("hidden_norm", hidden)
            self._norm = others.norm("norm", hidden)
            own_rows = checkpoint.tensor("lm_head.weight", drafts, hidden)
            self._head = VocabularyHead(own_rows, head.draft_vocab_size, backend)
            self._target_ids = backend.place(target_ids_of_drafts(checkpoint, head.draft_vocab_size, target.vocab_size))
            refuse_unread(checkpoint)
        self.max_positions = config.max_positions
        longest = min(max_model_len, max(self.max_positions, 1))
        self.rotary = RotaryEmbedding(RankShare.of(backend.collectives).config(config), longest, backend)

    def fuse(self, hidden_states: Tensor) -> Tensor:
        """Tapped states [rows, taps * hidden] to one state a row [rows, hidden]."""
        if self._taps_norm is not None:
            hidden_states = rms_norm(hidden_states, self._taps_norm, self._taps_epsilon)
        return self._fc(hidden_states)

    def forward(self, token_ids: Tensor, states: Tensor, attention: AttentionInputs, cache: PagedCache) -> Tensor:
        """New states [rows, hidden] from `token_ids` [rows] and the `states` [rows, hidden] of the tokens before."""
        layer = self._layer
        embedded = self._embedding(token_ids)
        embedded = rms_norm(embedded, layer.input_norm, self._epsilon)
        normed = rms_norm(states, self._hidden_norm, self._epsilon)
        residual = normed if self._norm_before_residual else states
        heads = layer.qkv(torch.cat([embedded, normed], -1)).view(states.shape[0], -1, self.config.head_dim)
        hidden = residual + layer.output(paged_attention(rotate(heads, attention), 0, cache, attention))
        normed = rms_norm(hidden, layer.post_attention_norm, self._epsilon)
        hidden = hidden + gated_mlp(normed, layer)
        return rms_norm(hidden, self._norm, self._epsilon) if self._norm_output else hidden

    def draft(self, states: Tensor) -> Tensor:
        """The most likely next token [rows] int32, as a target id, after each of `states` [rows, hidden]."""
        normed = states if self._norm_output else rms_norm(states, self._norm, self._epsilon)
        return self._target_ids.index_select(0, self._head.best(normed))


def prefixes(checkpoint: Checkpoint) -> tuple[str, str]:
    """What the names of all tensors begin with, and those of the layer. Raises CheckpointError for no known layout."""
    for body in ("", "model."):
        for layer in LAYER_NAMES:
            if any(name.startswith(body + layer) for name in checkpoint):
                return body, body + layer
    raise CheckpointError(
        f"{checkpoint.folder} holds no EAGLE3 head: no tensor's name begins with 'midlayer.' (SafeAILab, AngelSlim) "
        f"or 'layers.0.' (speculators)"
    )


def own_embedding(weights: LayerWeights, target: ModelConfig, shared: Embedding) -> Embedding:
    """The head's embedding, or the target's where it has none.

    The target's may have more rows, for tokens that do not exist: zeros stand for them.
    """
    config, name = weights.config, f"{weights.prefix}embed_tokens.weight"
    most = max(config.vocab_size, shared.shape[0])
    rows = weights.share.even(config.vocab_size, most)
    own = weights.checkpoint.optional(name, rows, weights.hidden)
    if own is not None:
        return Embedding(own, weights.backend)
    if config.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"{weights.checkpoint.folder} has no tensor {name!r}, and cannot share the target's embedding: its "
            f"hidden_size is {config.hidden_size}, the target's {target.hidden_size}"
        )
    return shared


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


def refuse_unread(checkpoint: Checkpoint) -> None:
    """A tensor that nobody read (a bias, a norm, a second layer) is part of a head that would draft differently."""
    unread = [name for name in checkpoint.unread if not name.endswith(UNUSED_NAMES)]
    if unread:
        raise CheckpointError(
            f"{checkpoint.folder} holds tensor {unread[0]!r}, which no supported EAGLE3 head with its config.json has"
        )
