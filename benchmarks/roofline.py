"""What a step must take at least: bytes over bandwidth or operations over peak, whichever is more, program by program.

    python -m benchmarks.roofline                                inf2, from its published figures
    python -m benchmarks.roofline --measure configs/eagle3.yaml  this CPU: the same model beside measured steps

docs/inf2_roofline.md holds both tables. Nothing of inf2 was measured.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from benchmarks.engine_client import engine_for_measuring
from benchmarks.provenance import provenance
from benchmarks.published_models import PAIRS, PublishedPair
from benchmarks.step_costs import (
    CONTEXT,
    READ,
    K,
    Timings,
    measure_programs,
    speculating_at,
    target_at,
    target_weight_bytes,
)
from replicas.config import EngineConfig
from replicas.config_file import read_engines
from replicas.devices.cpu import CpuBackend
from replicas.devices.neuron_hardware import CORE_BANDWIDTH, CORE_BF16_FLOPS
from replicas.devices.weight_sizes import Precision, StoredModel, weight_bytes
from replicas.engine_memory import stored_drafter, stored_target
from replicas.models.registry import target_config
from replicas.models.source import resolve_model

ACCEPTANCE = 0.7
"""Share of drafts that are accepted, each after the one before: for the table alone, not measured."""
GATHER_PASSES = 3
"""A static graph gathers the context: it reads the blocks, writes a copy and reads that."""


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's memory and arithmetic."""

    name: str
    bandwidth: float
    """Bytes a second."""
    peak: float
    """Operations a second in products; a multiplication and an addition are two."""
    ranks: int
    precision: Precision
    context_passes: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """What one program moves and computes on one rank."""

    moved: float
    """Bytes."""
    operations: float

    def seconds(self, device: Device) -> float:
        """The larger of the two limits."""
        return max(self.moved / device.bandwidth, self.operations / device.peak)

    def is_bound_by_memory(self, device: Device) -> bool:
        """True if `device` waits for bytes."""
        return self.moved / device.bandwidth >= self.operations / device.peak


def forward(model: StoredModel, device: Device, batch: int, tokens: int, context: int, without: str = "") -> Work:
    """One pass of `model` over `batch` sequences of `tokens` rows with `context` tokens behind each.

    Every product's weights are read once, whatever the rows; `without` names products that this pass leaves out.
    """
    products = {
        name: shape
        for name, shape in model.tensors.items()
        if len(shape) == 2 and "embed_tokens" not in name and not (without and without in name)
    }
    elements = weight_bytes(replace(model, tensors=products), device.ranks, Precision(linear=1, activation=0))
    share = model.sizes.of_rank(device.ranks)
    rows = batch * tokens
    attended = rows * context * share.num_layers * share.num_heads * share.head_dim
    kept = batch * context * share.kv_elements * device.context_passes
    moved = elements * device.precision.linear + kept * device.precision.activation
    return Work(moved, 2 * elements * rows + 4 * attended)


def draft_passes(head: StoredModel, device: Device, batch: int, k: int, context: int) -> Iterator[Work]:
    """Refreshing the head's KV over what was verified, then K - 1 passes of one row a sequence."""
    if k:
        yield forward(head, device, batch, 1 + k, context)
        yield from [forward(head, device, batch, 1, context, without="fc.")] * (k - 1)


def step_seconds(target: StoredModel, head: StoredModel, device: Device, batch: int, k: int, context: int) -> float:
    """A whole step; nothing of two passes overlaps."""
    drafting = sum(work.seconds(device) for work in draft_passes(head, device, batch, k, context))
    return forward(target, device, batch, 1 + k, context).seconds(device) + drafting


def mean_acceptance_length(k: int, acceptance: float) -> float:
    """Tokens a step, if each draft is accepted with probability `acceptance` once all before it were."""
    return sum(acceptance**position for position in range(k + 1))


def inf2(ranks: int) -> Device:
    """NeuronCores of Inferentia2 in bfloat16, at their published figures."""
    return Device(f"inf2, {ranks} cores", CORE_BANDWIDTH, CORE_BF16_FLOPS, ranks, Precision(2, 2), GATHER_PASSES)


def inf2_table(pair: PublishedPair, ranks: int, context: int = 1024) -> str:
    """Markdown: steps of `pair`, and what acceptance they need."""
    device = inf2(ranks)
    target, head = pair.stored_target(context), pair.stored_head(context)
    lines = [
        f"| {pair.name}, {ranks} cores, context {context} | step ms | bound by | drafting ms | "
        f"acceptance length to break even | TPOT ms if {ACCEPTANCE:.0%} are accepted |",
        "|---|---|---|---|---|---|",
    ]
    for batch in (1, 8, 32):
        plain = step_seconds(target, head, device, batch, 0, context)
        for k in (0, 3, 5):
            seconds = step_seconds(target, head, device, batch, k, context)
            drafting = sum(work.seconds(device) for work in draft_passes(head, device, batch, k, context))
            verify = forward(target, device, batch, 1 + k, context)
            bound = "memory" if verify.is_bound_by_memory(device) else "arithmetic"
            tpot = seconds / mean_acceptance_length(k, ACCEPTANCE)
            lines.append(
                f"| batch {batch}, K={k} | {1e3 * seconds:.2f} | {bound} | {1e3 * drafting:.2f} | "
                f"{seconds / plain:.2f} | {1e3 * tpot:.2f} |"
            )
    return "\n".join(lines)


def inf2_tables() -> str:
    """Both published pairs on one chip."""
    return "\n\n".join(inf2_table(pair, ranks=2) for pair in PAIRS)


def measured_cpu(config: EngineConfig, timings: Timings, rows: int = 96, rounds: int = 20) -> Device:
    """The CPU here: its bandwidth from the run's own reads, its peak from a large product of the backend."""
    folder = resolve_model(config.model)
    size = 2 if config.dtype == "float16" else 4
    shape = target_config(folder)
    read = target_weight_bytes(folder, shape, size) / median(timings.seconds[READ])
    weight = torch.randn(2 * shape.intermediate_size, shape.hidden_size)
    product, inputs = CpuBackend(config.dtype, config.num_threads).linear(weight), torch.randn(rows, shape.hidden_size)
    seconds: list[float] = []
    for _ in range(rounds):
        begin = time.perf_counter()
        product(inputs)
        seconds.append(time.perf_counter() - begin)
    return Device("this CPU", read, 2 * weight.numel() * rows / median(seconds), 1, Precision(size, 4))


def cpu_table(config: EngineConfig, timings: Timings, device: Device, ks: tuple[int, ...]) -> str:
    """Markdown: predicted and measured milliseconds of the programs that step_costs times."""
    folder = resolve_model(config.model)
    shape = target_config(folder)
    target, head = stored_target(shape, folder, config), stored_drafter(shape, folder, config)
    assert head is not None
    predicted = {target_at(k): forward(target, device, 1, 1 + k, CONTEXT).seconds(device) for k in ks}
    predicted |= {speculating_at(k): step_seconds(target, head, device, 1, k, CONTEXT) for k in ks if k}
    lines = ["| program | predicted ms | measured ms | measured / predicted |", "|---|---|---|---|"]
    for name, seconds in predicted.items():
        measured = timings.milliseconds(name)
        lines.append(f"| {name} | {1e3 * seconds:.2f} | {measured:.2f} | {measured / (1e3 * seconds):.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="CONFIG", help="measure this CPU with the config's first model")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    if args.measure is None:
        print(inf2_tables())
        return
    config = engine_for_measuring(read_engines(args.measure)[0].config, K)
    timings = measure_programs(config, args.rounds)
    device = measured_cpu(config, timings)
    print(f"{device.bandwidth / 1e9:.1f} GB/s read, {device.peak / 1e9:.0f} GFLOPS in a product of 96 rows")
    print(cpu_table(config, timings, device, ks=(0, 1, K)))
    print(json.dumps(provenance()))


if __name__ == "__main__":
    main()
