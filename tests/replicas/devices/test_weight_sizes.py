"""What a rank's share weighs, against sums done by hand and against published totals."""

import pytest

from benchmarks.published_models import LLAMA_31_8B, QWEN3_8B, PublishedPair
from replicas.devices.weight_sizes import DecoderSizes, Precision, Shape, StoredModel, weight_bytes

BF16 = Precision(2, 2)
SIZES = DecoderSizes(hidden_size=8, intermediate_size=10, num_heads=6, num_kv_heads=2, head_dim=4, num_layers=1)
LAYER = {
    "model.layers.0.self_attn.q_proj.weight": (24, 8),
    "model.layers.0.self_attn.k_proj.weight": (8, 8),
    "model.layers.0.self_attn.v_proj.weight": (8, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 24),
    "model.layers.0.mlp.gate_proj.weight": (10, 8),
    "model.layers.0.mlp.up_proj.weight": (10, 8),
    "model.layers.0.mlp.down_proj.weight": (8, 10),
    "model.layers.0.input_layernorm.weight": (8,),
    "model.layers.0.post_attention_layernorm.weight": (8,),
}
WHOLE = {"model.embed_tokens.weight": (5, 8), "model.norm.weight": (8,), "lm_head.weight": (5, 8)}


def weight(ranks: int = 1, precision: Precision = BF16, **changes: tuple[int, ...] | None) -> int:
    tensors: dict[str, Shape] = {**WHOLE, **LAYER}
    for name, shape in changes.items():
        del tensors[name.replace("__", ".")]
        if shape is not None:
            tensors[name.replace("__", ".")] = shape
    ties_head = "lm_head.weight" not in tensors
    return weight_bytes(StoredModel(SIZES, tensors, 16, 5, ties_head), ranks, precision)


@pytest.mark.parametrize(
    ("ranks", "heads", "kv_heads", "mlp"),
    [
        (1, 6, 2, 10),
        (2, 3, 1, 5),
        # Two ranks share a KV head, and split its three query heads as 2 and 1, padded.
        (4, 2, 1, 3),
        # No whole number of copies: two ranks have a KV head each, the third nothing.
        (3, 3, 1, 4),
        (12, 1, 1, 1),
    ],
)
def test_a_rank_s_share_replicates_kv_heads_and_pads(ranks: int, heads: int, kv_heads: int, mlp: int) -> None:
    share = SIZES.of_rank(ranks)
    assert (share.num_heads, share.num_kv_heads, share.intermediate_size) == (heads, kv_heads, mlp)
    # An embedding and a head of 5 tokens, three norms.
    vocab = 2 * -(-5 // ranks) * 8
    attention = (heads * 2 + kv_heads * 2) * 4 * 8
    assert weight(ranks) == 2 * (vocab + attention + 3 * mlp * 8 + 3 * 8)


def test_kv_heads_that_do_not_divide_bring_their_query_heads() -> None:
    # SmolLM2-135M on 2 ranks: KV heads 2 and 1, padded to 2 each, with 3 query heads a KV head.
    share = DecoderSizes(576, 1536, 9, 3, 64, 30).of_rank(2)
    assert (share.num_heads, share.num_kv_heads) == (6, 2)


def test_a_tied_head_is_placed_as_a_product_too() -> None:
    untied = weight(precision=Precision(2, 4))
    assert weight(precision=Precision(2, 4), lm_head__weight=None) == untied


def test_embedding_and_norms_have_the_activation_s_size_and_products_their_own() -> None:
    products = 5 * 8 + (24 + 8 + 8 + 24 + 10 + 10 + 10) * 8
    assert weight(precision=Precision(linear=3, activation=4)) == 3 * products + 4 * (5 * 8 + 3 * 8)


def test_packed_weights_are_stored_for_whole_blocks_of_inputs() -> None:
    # Of 8, 24 and 10 inputs, blocks of 16 make 16, 32 and 16.
    inputs = 16 * (5 + 24 + 8 + 8 + 10 + 10) + 32 * 8 + 16 * 8
    assert weight(precision=Precision(2, 4, input_block=16)) == 2 * inputs + 4 * (5 * 8 + 3 * 8)


def test_the_hidden_size_is_padded_wherever_it_stands() -> None:
    head = {
        "fc.weight": (8, 24),
        "input_norm.weight": (24,),
        "midlayer.self_attn.q_proj.weight": (24, 16),
        "midlayer.self_attn.q_proj.bias": (24,),
        "midlayer.self_attn.o_proj.weight": (8, 24),
        "midlayer.self_attn.o_proj.bias": (8,),
        "lm_head.weight": (4, 8),
        "d2t": (4,),
        "t2d": (5,),
        "rotary_emb.inv_freq": (2,),
    }
    padded = weight_bytes(StoredModel(SIZES, head, 16, 4), 1, Precision(1, 1, hidden_multiple=9))
    assert padded == 9 * 27 + 27 + 24 * 18 + 24 + 9 * 24 + 9 + 4 * 9 + 4 * 4


@pytest.mark.parametrize(
    ("pair", "parameters"),
    # Of the models' cards: 8.03 billion and 8.19 billion.
    [(LLAMA_31_8B, 8_030_261_248), (QWEN3_8B, 8_190_735_360)],
)
def test_published_targets_have_their_published_parameters(pair: PublishedPair, parameters: int) -> None:
    assert weight_bytes(pair.stored_target(8192), 1, BF16) == 2 * parameters


def test_the_published_head_is_its_products_norms_and_map() -> None:
    hidden, kv, mlp, drafts = 4096, 1024, 14336, 32000
    products = hidden * 3 * hidden + (hidden + 2 * kv) * 2 * hidden + hidden**2 + 3 * mlp * hidden + drafts * hidden
    assert weight_bytes(LLAMA_31_8B.stored_head(8192), 1, BF16) == 2 * (products + 4 * hidden) + 4 * drafts
    # Second seed, section 3.2.
    tensors = QWEN3_8B.stored_head(8192).tensors
    assert tensors["midlayer.self_attn.q_proj.weight"] == (4096, 8192)
    assert tensors["midlayer.mlp.gate_proj.weight"] == (12288, 4096)
    assert tensors["fc.weight"] == (4096, 12288)
