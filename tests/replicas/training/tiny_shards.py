"""Shards of conversations that the tiny target might have written."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from tests.reference.tiny_checkpoints import HIDDEN

MARKER = [190, 191]
"""Stands between the user's text and the answer."""


def write_shard(folder: Path, index: int, model: LlamaForCausalLM, count: int = 6) -> Path:
    """Conversations of random tokens whose answers begin at token 7, with the model's own last states."""
    generator = torch.Generator().manual_seed(index)
    texts = [torch.randint(0, 60, (20 + 3 * i,), generator=generator) for i in range(count)]
    for text in texts:
        text[5:7] = torch.tensor(MARKER)
    with torch.no_grad():
        states = [model.model(text[None]).last_hidden_state[0] for text in texts]
    # The tapped states are not read.
    with_taps = [torch.cat([torch.full((len(s), 3 * HIDDEN), 7.0), s], 1).half() for s in states]
    path = folder / f"shard-{index:05}.safetensors"
    save_file(
        {
            "tokens": torch.cat(texts).int(),
            "lengths": torch.tensor([len(text) for text in texts], dtype=torch.int32),
            "states": torch.cat(with_taps),
        },
        path,
    )
    return path
