"""One target run on one sequence, and held against transformers."""

import itertools
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from replicas.devices.cpu import CpuBackend
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.registry import TargetModel, load_target, target_config
from tests.reference.decoding import full_logits, layer_inputs
from tests.reference.tiny_checkpoints import VOCAB

BLOCK_SIZE = 4
MAX_LENGTH = 96
QWEN_YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }
}
"""Changes of a tiny checkpoint; as long Qwen checkpoints are described."""
PROMPT: list[int] = torch.randint(0, VOCAB, (41,), generator=torch.Generator().manual_seed(5)).tolist()


def load(folder: Path, backend: CpuBackend | None = None, taps: tuple[int, ...] = ()) -> TargetModel:
    """The target in `folder`, tapped; float32 unless `backend` says otherwise."""
    backend = backend or CpuBackend("float32", num_threads=1)
    model = load_target(folder, target_config(folder), backend, MAX_LENGTH)
    model.tap(taps)
    return model


def run(model: TargetModel, chunks: list[list[int]]) -> tuple[Tensor, Tensor | None]:
    """Logits [tokens, vocab] and taps of one sequence, run chunk by chunk over scattered blocks."""
    config = model.config
    blocks = MAX_LENGTH // BLOCK_SIZE
    cache = PagedCache(config.num_layers, 2 * blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    order = torch.randperm(2 * blocks - 1, generator=torch.Generator().manual_seed(1)) + 1
    table = order[:blocks].int()[None]
    start, logits, taps = 0, list[Tensor](), list[Tensor]()
    with torch.inference_mode():
        for chunk in chunks:
            positions = torch.arange(start, start + len(chunk), dtype=torch.int32)[None]
            attention = model.rotary.attention_inputs(positions, table, cache)
            hidden, tapped = model.forward(torch.tensor([chunk], dtype=torch.int32), attention, cache)
            logits.append(model.logits(hidden))
            taps += [] if tapped is None else [tapped]
            start += len(chunk)
    return torch.cat(logits), torch.cat(taps) if taps else None


def assert_like_transformers(folder: Path, reference: LlamaForCausalLM, backend: CpuBackend | None = None) -> None:
    """Logits, and the hidden states at every layer boundary, of the target in `folder` are those of `reference`."""
    config = target_config(folder)
    count, hidden = config.num_layers + 1, config.hidden_size
    logits, taps = run(load(folder, backend, tuple(range(count))), [PROMPT])
    expected = full_logits(reference, PROMPT)
    assert expected.std() > 0.5, "the reference tells tokens apart"
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-4)
    assert taps is not None
    boundaries = layer_inputs(reference, PROMPT)
    for layer, (ours, theirs) in enumerate(zip(taps.chunk(count, -1), boundaries, strict=True)):
        # What lies beyond `hidden` is a backend's padding.
        assert not ours[:, hidden:].any()
        torch.testing.assert_close(
            ours[:, :hidden], theirs, rtol=1e-4, atol=2e-4, msg=lambda text, layer=layer: f"tap {layer}: {text}"
        )
    for earlier, later in itertools.pairwise(boundaries):
        assert (later - earlier).abs().mean() > 0.1, "neighbouring boundaries could be mistaken for one another"
