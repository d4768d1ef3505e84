"""Layout of the exported head."""

import json

import pytest
import torch
from safetensors.torch import load_file

from replicas.training.export import export_config, export_tensors, write_head
from tests.replicas.training import tiny


def test_names_shapes_and_dtypes_are_those_of_the_seeds(tmp_path):
    vocab = tiny.some_vocab(16)
    write_head(
        tmp_path,
        export_tensors(tiny.random_head(16), vocab),
        export_config(tiny.hf_config(), vocab, (2, 3, 3)),
        {"a": 1},
    )
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(value.shape) for name, value in tensors.items()} == {
        "d2t": (16,),
        "t2d": (40,),
        "midlayer.self_attn.q_proj.weight": (24, 48),
        "midlayer.self_attn.k_proj.weight": (8, 48),
        "midlayer.self_attn.v_proj.weight": (8, 48),
        "midlayer.self_attn.o_proj.weight": (24, 24),
        "midlayer.mlp.gate_proj.weight": (32, 24),
        "midlayer.mlp.up_proj.weight": (32, 24),
        "midlayer.mlp.down_proj.weight": (24, 32),
        "midlayer.hidden_norm.weight": (24,),
        "midlayer.input_layernorm.weight": (24,),
        "midlayer.post_attention_layernorm.weight": (24,),
        "norm.weight": (24,),
        "fc.weight": (24, 72),
        "lm_head.weight": (16, 24),
    }
    assert tensors.pop("d2t").dtype == torch.int64
    assert tensors.pop("t2d").dtype == torch.bool
    assert {value.dtype for value in tensors.values()} == {torch.float16}
    assert json.loads((tmp_path / "PROVENANCE.json").read_text()) == {"a": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["PROVENANCE.json", "config.json", "model.safetensors"]


def test_the_config_describes_the_head():
    config = export_config(tiny.hf_config(), tiny.some_vocab(16), (2, 3, 3))
    expected = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 24, "intermediate_size": 32,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4, "num_hidden_layers": 1, "vocab_size": 40,
        "draft_vocab_size": 16, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": [2, 3, 3], "dtype": "float16",
    }  # fmt: skip
    assert {name: config[name] for name in expected} == expected
    assert config["rope_parameters"]["rope_theta"] == 1000.0


def test_the_tap_scale_is_folded_into_fc():
    head, vocab = tiny.random_head(16), tiny.some_vocab(16)
    taps = torch.randn(5, 72)
    exported = taps @ export_tensors(head, vocab)["fc.weight"].float().T
    torch.testing.assert_close(exported, head.fuse(taps), atol=2e-2, rtol=2e-3)


def test_a_weight_beyond_fp16_is_refused_by_name():
    head = tiny.random_head(16)
    with torch.no_grad():
        head.midlayer.mlp.up_proj.weight[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"midlayer\.mlp\.up_proj\.weight.*1e\+06"):
        export_tensors(head, tiny.some_vocab(16))
