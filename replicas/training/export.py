"""Writing a trained head as a checkpoint that engines load: safetensors, config.json and how it was made."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedConfig

from replicas.training.draft_vocab_choice import DraftVocab
from replicas.training.head_module import DraftHead

ARCHITECTURE = "LlamaForCausalLMEagle3"


def export_tensors(head: DraftHead, vocab: DraftVocab) -> dict[str, Tensor]:
    """The checkpoint's tensors by name: weights fp16 with the tap scale folded into fc, d2t int64, t2d bool."""
    weights = {name: value.detach().clone() for name, value in head.state_dict().items() if name != "tap_scale"}
    weights["fc.weight"] = weights["fc.weight"] / head.tap_scale
    halves = {name: value.half().contiguous() for name, value in weights.items()}
    for name, value in halves.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"tensor {name!r} does not fit fp16: its largest value is {float(weights[name].abs().max()):g}"
            )
    return {"d2t": vocab.d2t, "t2d": vocab.t2d, **halves}


def export_config(target: PreTrainedConfig, vocab: DraftVocab, tapped_layers: tuple[int, ...]) -> dict[str, Any]:
    """config.json of the head: the target's shape, one layer, the draft vocabulary."""
    source = target.to_dict()
    same = (
        "model_type", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
        "rms_norm_eps", "rope_parameters", "max_position_embeddings", "bos_token_id", "eos_token_id",
    )  # fmt: skip
    head_dim = source.get("head_dim") or source["hidden_size"] // source["num_attention_heads"]
    return {
        "architectures": [ARCHITECTURE],
        **{name: source[name] for name in same if name in source},
        "head_dim": head_dim,
        "num_hidden_layers": 1,
        "vocab_size": vocab.vocab_size,
        "draft_vocab_size": len(vocab.target_ids),
        "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": list(tapped_layers),
        "dtype": "float16",
    }


def write_head(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Write the three files into `folder`, each replaced whole so that a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "model.safetensors.part"
    save_file(tensors, part, {"format": "pt"})
    os.replace(part, folder / "model.safetensors")
    for name, content in (("config.json", config), ("PROVENANCE.json", provenance)):
        part = folder / f"{name}.part"
        part.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(part, folder / name)
