"""Traces a step of a tiny target with its EAGLE3 head on every device of a world, and writes each rank's HLO.

    python tests/device/xla/traced_ranks.py TARGET HEAD OUT RANKS greedy|sampled [bfloat16]

A process of its own, because XLA's world is fixed when its runtime starts. Nothing runs: XLA's CPU client has no
collectives. One step only: collectives are chained, so that a second trace would hold the first.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

ONE_AT_A_TIME = threading.Lock()
"""The ranks are threads here, and torch_xla's own operations are not traced by two of them at once."""


def main(target_folder: str, head: str, out: str, ranks: str, sampling: str, dtype: str = "float32") -> None:
    """Fills `out`."""
    os.environ["CPU_NUM_DEVICES"] = ranks
    os.environ["PJRT_DEVICE"] = "CPU"
    import torch_xla

    torch_xla.launch(trace, args=(Path(target_folder), head, Path(out), int(ranks), sampling, dtype))


def trace(index: int, target_folder: Path, head: str, out: Path, ranks: int, sampling: Any, dtype: str) -> None:
    """Body of one rank."""
    import torch
    import torch_xla

    from replicas.config import SpeculativeConfig
    from replicas.devices.structures import tensors_of, with_tensors
    from replicas.devices.xla_neuron import XlaBackend
    from replicas.drafters.registry import DRAFTERS, DrafterContext
    from replicas.kv_cache.paged_cache import PagedCache
    from replicas.models.sharding import RankShare
    from replicas.runner.batch_inputs import pack
    from replicas.runner.programs import ProgramKey, Variant
    from replicas.runner.speculative_step import speculative_step
    from tests.reference.hand_built_engine import TinyTarget

    backend = XlaBackend("xla-cpu", dtype, ranks=ranks)
    rank = backend.collectives.rank
    with ONE_AT_A_TIME, torch.no_grad():
        target = TinyTarget(target_folder, max_model_len=64, backend=backend)
        config = target.config(max_model_len=64, num_blocks=32)
        speculative = SpeculativeConfig(method="eagle3", model=head)
        shape = target.shape
        kv_heads = RankShare.of(backend.collectives).config(shape).num_kv_heads
        drafter = DRAFTERS["eagle3"](DrafterContext(config, speculative, target.model, backend, 32))
        target.model.tap(drafter.tapped_layers)
        cache = PagedCache(
            shape.num_layers, 32, 4, kv_heads, shape.head_dim, backend.torch_device, backend.activation_dtype
        )
        # Weights and caches are no part of a step.
        torch_xla.sync(wait=True)
        packed = pack((), ProgramKey(False, 2, 4, 3, 16, Variant(sampling)), 4, shape.vocab_size)
        placed = [tensor.to(backend.torch_device) for tensor in tensors_of(packed)]
        outputs = speculative_step(target.model, cache, drafter, with_tensors(packed, iter(placed)), 3)
        tensors = [*tensors_of(outputs), cache.tensor, *(state.tensor for state in drafter.states)]
        (out / f"{sampling}-{rank}.hlo").write_text(torch_xla._XLAC._get_xla_tensors_hlo(tensors))


if __name__ == "__main__":
    main(*sys.argv[1:])
