"""Shapes of published targets and their EAGLE3 heads, to plan with before anything is downloaded.

From their config.json files and the second seed (section 3.2).
"""

from dataclasses import dataclass

from replicas.devices.weight_sizes import DecoderSizes, Shape, StoredModel


@dataclass(frozen=True, slots=True)
class PublishedPair:
    """A target with its head."""

    name: str
    target: DecoderSizes
    head: DecoderSizes
    vocab_size: int
    draft_vocab_size: int
    norms_heads: bool
    """Qwen3's q_norm and k_norm."""
    head_positions: int
    """The head's own context; longer sequences go on without drafts."""

    def stored_target(self, positions: int) -> StoredModel:
        """The target's tensors."""
        sizes = self.target
        tensors: dict[str, Shape] = {
            "model.embed_tokens.weight": (self.vocab_size, sizes.hidden_size),
            "model.norm.weight": (sizes.hidden_size,),
            "lm_head.weight": (self.vocab_size, sizes.hidden_size),
        }
        for layer in range(sizes.num_layers):
            tensors |= layer_tensors(sizes, sizes.hidden_size, f"model.layers.{layer}.")
            if self.norms_heads:
                for name in ("q_norm", "k_norm"):
                    tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = (sizes.head_dim,)
        return StoredModel(sizes, tensors, positions, self.vocab_size)

    def stored_head(self, positions: int) -> StoredModel:
        """The head's tensors; it shares the target's embedding."""
        sizes, hidden = self.head, self.head.hidden_size
        tensors = layer_tensors(sizes, 2 * hidden, "midlayer.") | {
            "midlayer.hidden_norm.weight": (hidden,),
            "fc.weight": (hidden, 3 * self.target.hidden_size),
            "norm.weight": (hidden,),
            "lm_head.weight": (self.draft_vocab_size, hidden),
            "d2t": (self.draft_vocab_size,),
            "t2d": (self.vocab_size,),
        }
        return StoredModel(sizes, tensors, positions, self.draft_vocab_size)


def layer_tensors(sizes: DecoderSizes, attention_inputs: int, prefix: str) -> dict[str, Shape]:
    """One decoder layer, whose attention reads `attention_inputs` elements."""
    hidden, mlp = sizes.hidden_size, sizes.intermediate_size
    heads, kv_heads = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    shapes: dict[str, Shape] = {
        "self_attn.q_proj": (heads, attention_inputs),
        "self_attn.k_proj": (kv_heads, attention_inputs),
        "self_attn.v_proj": (kv_heads, attention_inputs),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


LLAMA_31_8B = PublishedPair(
    name="Llama-3.1-8B-Instruct + yuhuili EAGLE3",
    target=DecoderSizes(4096, 14336, 32, 8, 128, 32),
    head=DecoderSizes(4096, 14336, 32, 8, 128, 1),
    vocab_size=128256,
    draft_vocab_size=32000,
    norms_heads=False,
    head_positions=2048,
)
QWEN3_8B = PublishedPair(
    name="Qwen3-8B + AngelSlim EAGLE3",
    target=DecoderSizes(4096, 12288, 32, 8, 128, 36),
    head=DecoderSizes(4096, 12288, 32, 8, 128, 1),
    vocab_size=151936,
    draft_vocab_size=32000,
    norms_heads=True,
    head_positions=2048,
)
PAIRS = (LLAMA_31_8B, QWEN3_8B)
