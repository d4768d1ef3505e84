"""Checkpoints with the names, widths and config.json of published models, few layers, and random weights in bf16.

What they say is known beforehand: embedding and heads are made so that each token is followed by its successor in one
long cycle, whatever the random layers add. The head knows the first draft after a state, and not the second.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.published_models import LLAMA_31_8B, QWEN3_8B, PublishedPair
from replicas.models.checkpoint import INDEX_FILE
from tests.reference.tiny_checkpoints import save_head, write_tokenizer

LAYERS = 2
TAPPED = [0, 1, 2]
"""Boundaries of two layers: before, between, after. The published heads name none: 2, N/2 and N-3."""
EMBEDDING_STD = 0.16
"""Beside the layers, whose outputs are about 1: the successor's logit is some 8 above the next one, not 100."""
LOGIT_STD = 1.0
"""Of tokens that are no successor."""
MAX_SHARD_BYTES = 2 * 2**30

TARGET_CONFIGS: dict[str, dict[str, Any]] = {
    LLAMA_31_8B.name: {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 128256,
    },
    QWEN3_8B.name: {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 12288,
        "max_position_embeddings": 40960,
        "max_window_layers": 36,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
}
HEAD_CONFIGS: dict[str, dict[str, Any]] = {
    LLAMA_31_8B.name: {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 14336,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_cache": True,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
    },
    QWEN3_8B.name: {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 12288,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 1,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 151936,
        "draft_vocab_size": 32000,
    },
}


@dataclass(frozen=True)
class MadePair:
    """The folders of a target and its head, and what the target says."""

    target: Path
    head: Path
    successors: tuple[int, ...]
    """By token."""
    prompt: tuple[int, ...]
    """Of tokens that the head knows, as are all their successors."""

    def answer(self, count: int) -> list[int]:
        """The `count` tokens that follow the prompt."""
        tokens = [self.prompt[-1]]
        while len(tokens) <= count:
            tokens.append(self.successors[tokens[-1]])
        return tokens[1:]


def write_pair(pair: PublishedPair, folder: Path, seed: int = 0) -> MadePair:
    """Write both checkpoints under `folder`, about 5 GB."""
    generator = torch.Generator().manual_seed(seed)
    vocab, drafts, hidden = pair.vocab_size, pair.draft_vocab_size, pair.target.hidden_size
    known, others = torch.randperm(vocab, generator=generator).split([drafts, vocab - drafts])
    before = torch.empty(vocab, dtype=torch.int64)
    for tokens in (known, others):
        before[tokens] = tokens.roll(1)
    embedding = matrix(generator, (vocab, hidden), EMBEDDING_STD)
    row_scale = LOGIT_STD / (EMBEDDING_STD * hidden**0.5)

    target, head = folder / "target", folder / "head"
    small = replace(pair, target=replace(pair.target, num_layers=LAYERS))
    tensors = random_tensors(small.stored_target(0).tensors, generator, without=("embed_tokens", "lm_head"))
    tensors |= {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": embedding[before] * row_scale,
    }
    write_sharded(target, TARGET_CONFIGS[pair.name] | {"num_hidden_layers": LAYERS}, tensors)
    del tensors
    write_tokenizer(target)

    ids = known.sort().values
    tensors = random_tensors(small.stored_head(0).tensors, generator, without=("fc", "lm_head", "d2t", "t2d"))
    # The first tap is the embedding of the token before the last: two steps from it is what is drafted first.
    fusion = matrix(generator, (hidden, 3 * hidden), 0.3 * hidden**-0.5)
    fusion[:, :hidden] += torch.eye(hidden, dtype=torch.bfloat16) * (0.5 / EMBEDDING_STD)
    tensors |= {
        "fc.weight": fusion,
        "lm_head.weight": embedding[before[before[ids]]] * row_scale,
        "d2t": ids - torch.arange(drafts),
        "t2d": torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True),
    }
    save_head(head, HEAD_CONFIGS[pair.name] | {"eagle_aux_hidden_state_layer_ids": TAPPED}, tensors)
    successors = torch.empty_like(before).index_copy(0, before, torch.arange(vocab))
    return MadePair(target, head, tuple(successors.tolist()), tuple(known[:: drafts // 7][:7].tolist()))


def matrix(generator: torch.Generator, shape: tuple[int, ...], std: float) -> Tensor:
    """Normal, in bf16 from the start: the largest have 600 million elements."""
    return torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, std, generator=generator)


def random_tensors(shapes: Any, generator: torch.Generator, without: tuple[str, ...]) -> dict[str, Tensor]:
    """Norms around 1, and products that keep the scale of their inputs, less those that the caller makes."""
    tensors: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name.removesuffix(".weight").rpartition(".")[2] in without:
            continue
        is_norm = len(shape) == 1
        tensors[name] = 1 + matrix(generator, shape, 0.1) if is_norm else matrix(generator, shape, shape[1] ** -0.5)
    return tensors


def write_sharded(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """config.json, and files of about 2 GiB with an index, as the large targets are published."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in tensors.items():
        if sum(held.nbytes for held in shards[-1].values()) + tensor.nbytes > MAX_SHARD_BYTES and shards[-1]:
            shards.append({})
        shards[-1][name] = tensor
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
