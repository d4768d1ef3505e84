"""The Llama decoder over paged KV, tapping the hidden states that EAGLE3 drafts from."""

import torch
from torch import Tensor

from replicas.devices.device_backend import DeviceBackend, Linear
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.checkpoint import Checkpoint
from replicas.models.decoder_layer import DecoderLayer, LayerWeights
from replicas.models.layers import AttentionInputs, RotaryEmbedding, gated_mlp, paged_attention, rms_norm, rotate
from replicas.models.model_config import ModelConfig
from replicas.models.padding import PaddedSize
from replicas.models.sharding import RankShare
from replicas.models.vocabulary import Embedding, VocabularyHead, vocabulary_part


class LlamaModel:
    """Llama: RMSNorm, rotary GQA attention, SwiGLU; tied or untied head, optional biases."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, backend: DeviceBackend, max_model_len: int) -> None:
        self.config = config
        self._tapped_layers: tuple[int, ...] = ()
        self.rotary = RotaryEmbedding(RankShare.of(backend.collectives).config(config), max_model_len, backend)
        hidden = PaddedSize.rounded_up(config.hidden_size, backend.hidden_multiple)
        vocab = vocabulary_part(config.vocab_size, backend)
        self._epsilon = hidden.epsilon(config.rms_norm_eps)
        embedding = checkpoint.tensor("model.embed_tokens.weight", vocab, hidden)
        head = embedding if config.tie_word_embeddings else checkpoint.tensor("lm_head.weight", vocab, hidden)
        # The largest product comes first: nothing else is there yet when its conversion needs room.
        self._head = VocabularyHead(head, config.vocab_size, backend)
        self.embedding = Embedding(embedding, backend)

        def weights(prefix: str) -> LayerWeights:
            return LayerWeights(checkpoint, backend, config, hidden, prefix)

        self._layers = [self.load_layer(weights(f"model.layers.{index}.")) for index in range(config.num_layers)]
        self._norm = weights("model.").norm("norm", hidden)

    def load_layer(self, weights: LayerWeights) -> DecoderLayer:
        """One layer. Siblings of Llama override this or `load_qkv`."""
        return weights.layer(self.load_qkv(weights), output_bias=self.config.attention_bias)

    def load_qkv(self, weights: LayerWeights) -> Linear:
        """What makes a layer's queries, keys and values of its normed input (see DecoderLayer.qkv)."""
        return weights.qkv(weights.hidden, bias=self.config.attention_bias)

    def tap(self, layers: tuple[int, ...]) -> None:
        """Make `forward` return the input states of `layers` (first seed, "SupportsEagle3")."""
        self._tapped_layers = layers

    def forward(self, token_ids: Tensor, attention: AttentionInputs, cache: PagedCache) -> tuple[Tensor, Tensor | None]:
        """Run `token_ids` [batch, tokens] and write their KV.

        Returns the normed last hidden states [batch * tokens, hidden] and the tapped ones [batch * tokens,
        taps * hidden] (None without taps). A tap at layer i is the input of layer i (first seed, "Auxiliary
        Hidden State Extraction"); i = num_layers is the output of the last.
        """
        hidden = self.embedding(token_ids.flatten())
        taps: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            if index in self._tapped_layers:
                taps[index] = hidden
            hidden = self.run_layer(layer, index, hidden, attention, cache)
        taps[len(self._layers)] = hidden
        tapped = torch.cat([taps[index] for index in self._tapped_layers], -1) if self._tapped_layers else None
        return rms_norm(hidden, self._norm, self._epsilon), tapped

    def run_layer(
        self, layer: DecoderLayer, index: int, hidden: Tensor, attention: AttentionInputs, cache: PagedCache
    ) -> Tensor:
        """States [rows, hidden] after `layer`, whose KV is layer `index` of `cache`, of the `hidden` that enter it."""
        normed = rms_norm(hidden, layer.input_norm, self._epsilon)
        heads = layer.qkv(normed).view(hidden.shape[0], -1, self.config.head_dim)
        hidden = hidden + layer.output(paged_attention(rotate(heads, attention), index, cache, attention))
        normed = rms_norm(hidden, layer.post_attention_norm, self._epsilon)
        return hidden + gated_mlp(normed, layer)

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary scores [rows, vocab] of normed hidden states [rows, hidden]."""
        return self._head.logits(hidden)

    def best(self, hidden: Tensor, below: int | None = None) -> Tensor:
        """The likeliest token [rows] int32 for the same, of those with ids under `below` if given."""
        return self._head.best(hidden, below)
