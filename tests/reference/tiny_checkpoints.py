"""Random checkpoints that load in milliseconds: a target with a tokenizer, an EAGLE3 head as AngelSlim's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PreTrainedConfig

VOCAB = 200
END = VOCAB - 1
"""The end-of-sequence token of the tiny target, `<eos>`."""
HIDDEN = 64
LAYERS = 4
DRAFT_VOCAB = 60


def tiny_config(model_type: str = "llama", **changes: Any) -> PreTrainedConfig:
    """4 layers, 64 wide, 4 query heads over 2 KV heads, 200 tokens; weights so wide that no two logits nearly tie."""
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HIDDEN // 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": None,
    }
    return AutoConfig.for_model(model_type, **(fields | changes))


def random_target(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A float32 model of `tiny_config`, in evaluation mode; norms and biases are random too."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(**changes)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1.0 + 0.2 * torch.randn_like(parameter))
            elif name.endswith(".bias"):
                parameter.copy_(0.2 * torch.randn_like(parameter))
    return model


def write_target(folder: Path, seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Save `random_target` and, where it has the usual vocabulary, a tokenizer into `folder`.

    Models of other types have the attributes of LlamaForCausalLM that tests use.
    """
    model = random_target(seed, **changes)
    model.save_pretrained(folder)
    if model.config.vocab_size == VOCAB:
        write_tokenizer(folder)
    return model


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer of 200 tokens: printable ASCII, pairs of letters as merges, and <eos>."""
    names = [chr(code) for code in range(33, 127)] + ["\u0120"]  # U+0120 is how byte-level BPE writes a space
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = [(first, second) for first in letters for second in letters][: VOCAB - 1 - len(names)]
    vocabulary = {name: index for index, name in enumerate([*names, *("".join(pair) for pair in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def head_config(**changes: Any) -> dict[str, Any]:
    """config.json of a head for the tiny target, drafting from 60 tokens and tapping layers 0, 2 and 3."""
    fields: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 80,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": [0, 2, 3],
    }
    return fields | changes


def head_tensors(config: Mapping[str, Any], seed: int = 0, own_embedding: bool = False) -> dict[str, Tensor]:
    """Random tensors named and shaped as AngelSlim and SafeAILab save them; d2t spreads drafts over the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    hidden, mlp, vocab, drafts = (
        config["hidden_size"],
        config["intermediate_size"],
        config["vocab_size"],
        config["draft_vocab_size"],
    )
    taps = len(config.get("eagle_aux_hidden_state_layer_ids") or range(3)) * (
        config.get("target_hidden_size") or hidden
    )
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    def norm(size: int = hidden) -> Tensor:
        return 1.0 + 0.2 * torch.randn(size, generator=generator)

    target_ids = torch.randperm(vocab, generator=generator)[:drafts].sort().values
    tensors = {
        "fc.weight": matrix(hidden, taps),
        "midlayer.self_attn.q_proj.weight": 2 * matrix(queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": 2 * matrix(keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, queries),
        "midlayer.mlp.gate_proj.weight": matrix(mlp, hidden),
        "midlayer.mlp.up_proj.weight": matrix(mlp, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, mlp),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "norm.weight": norm(),
        "lm_head.weight": matrix(drafts, hidden),
        "d2t": target_ids - torch.arange(drafts),
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill(0, target_ids, True),
    }
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = norm(taps)
    if config.get("attention_bias"):
        for name, size in (("q", queries), ("k", keys), ("v", keys), ("o", hidden)):
            tensors[f"midlayer.self_attn.{name}_proj.bias"] = 0.2 * torch.randn(size, generator=generator)
    if own_embedding:
        tensors["embed_tokens.weight"] = torch.randn(vocab, hidden, generator=generator)
    return tensors


def write_head(folder: Path, seed: int = 0, without: tuple[str, ...] = (), **changes: Any) -> dict[str, Tensor]:
    """Save a random head, less the tensors named in `without`, into `folder`; returns the saved tensors."""
    config = head_config(**changes)
    tensors = {name: tensor for name, tensor in head_tensors(config, seed).items() if name not in without}
    save_head(folder, config, tensors)
    return tensors


def save_head(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors")


def as_speculators(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same head in the layout of vLLM's speculators; one whose residual is not normed must say so there."""
    own = {
        "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "target_hidden_size", "norm_before_residual",
        "norm_before_fc", "norm_output",
    }  # fmt: skip
    nested = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "accept_tolerance": 0.0}],
            "verifier": {"name_or_path": "some/model", "architectures": ["LlamaForCausalLM"]},
        },
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            name: value for name, value in config.items() if name not in own | {"architectures"}
        },
        **{name: config[name] for name in own if name in config},
    }
    return nested, {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
