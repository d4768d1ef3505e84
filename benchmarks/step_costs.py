"""What a step costs beside what memory allows: target, verifying, drafting, and the host's share.

python -m benchmarks.step_costs configs/eagle3.yaml
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from tqdm import tqdm

from benchmarks.engine_client import engine_for_measuring
from benchmarks.metrics import median_ratio
from benchmarks.provenance import provenance
from replicas.config import EngineConfig
from replicas.devices.cpu import CpuBackend
from replicas.drafters.registry import DRAFTERS, DrafterContext
from replicas.engine import Engine, build_engine
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.checkpoint import Checkpoint
from replicas.models.model_config import ModelConfig
from replicas.models.registry import load_target, target_config
from replicas.models.source import resolve_model
from replicas.request import GenerationRequest, SamplingParams
from replicas.runner.model_runner import ModelRunner
from replicas.runner.shape_buckets import ShapeBuckets
from replicas.scheduling.step_plan import BatchPlan, SequencePlan, StepPlan, TokenChoice
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.k_policy import FixedK
from serve_app.serve_config import load_own_model

K = 5
"""Drafts of the widest program: 6 rows are verified."""
BATCH = 8
WARM_UP_STEPS = 16
CONTEXT = 200
"""Tokens that a sequence has when its step is timed."""
SPARE_BLOCKS = 32
"""So that the padded context of a bucket stays within the cache, as in an engine."""
READ = "reading as many bytes as the target's weights"


def target_at(k: int) -> str:
    """Name of the target alone, verifying `k` drafts."""
    return f"target alone, rows: {1 + k}"


def speculating_at(k: int) -> str:
    """Name of a whole step."""
    return f"target and drafter, K={k}"


@dataclass(slots=True)
class Timings:
    """Seconds of each program, one figure a round; all programs of a round ran next to each other."""

    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, name: str, seconds: float) -> None:
        """Note one run."""
        self.seconds.setdefault(name, []).append(seconds)

    def milliseconds(self, name: str) -> float:
        """Median of `name`."""
        return 1e3 * median(self.seconds[name])

    def ratio(self, name: str, other: str) -> float:
        """Median of the rounds' ratios."""
        return median_ratio(self.seconds[name], self.seconds[other])


def target_weight_bytes(folder: Path, shape: ModelConfig, bytes_a_weight: int) -> int:
    """Bytes of weights that one step of the target reads: all but an embedding that is no head as well."""
    with Checkpoint(folder) as checkpoint:
        weights = {name: tensor.numel() for name, tensor in checkpoint.items()}
    unread = 0 if shape.tie_word_embeddings else weights["model.embed_tokens.weight"]
    return bytes_a_weight * (sum(weights.values()) - unread)


def decode_plan(k: int, block_size: int) -> StepPlan:
    """One greedy sequence of CONTEXT tokens that verifies and proposes `k` drafts."""
    greedy = TokenChoice(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
    table = tuple(range(1, 2 + (CONTEXT + 2 * K) // block_size))
    sequence = SequencePlan("benchmark", (1,) * (1 + k), CONTEXT, k, None, k, table, greedy)
    return StepPlan((BatchPlan((sequence,), k, is_prefill=False),))


def programs(config: EngineConfig) -> dict[str, Callable[[], float]]:
    """Name -> runs it once and returns its seconds."""
    folder = resolve_model(config.model)
    shape = target_config(folder)
    backend = CpuBackend(config.dtype, config.num_threads, deterministic=config.deterministic)
    num_blocks = 2 + (CONTEXT + 2 * K) // config.block_size + SPARE_BLOCKS
    buckets = ShapeBuckets.build(
        1, config.max_num_batched_tokens, config.max_model_len, config.block_size, range(K + 1)
    )
    with torch.inference_mode():
        target = load_target(folder, shape, backend, config.max_model_len)
        cache = PagedCache(shape.num_layers, num_blocks, config.block_size, shape.num_kv_heads, shape.head_dim)
        assert config.speculative_config is not None
        drafter = DRAFTERS[config.speculative_config.method](
            DrafterContext(config, config.speculative_config, target, backend, num_blocks)
        )
        target.tap(drafter.tapped_layers)
    plain = ModelRunner(target, cache, None, buckets, backend)
    drafting = ModelRunner(target, cache, drafter, buckets, backend)
    weights = torch.ones(target_weight_bytes(folder, shape, 2 if config.dtype == "float16" else 4) // 4)

    def read() -> float:
        begin = time.perf_counter()
        weights.sum()
        return time.perf_counter() - begin

    def program(runner: ModelRunner, k: int) -> Callable[[], float]:
        plan = decode_plan(k, config.block_size)
        return lambda: runner.execute(plan).program_seconds

    return {
        READ: read,
        **{target_at(k): program(plain, k) for k in (0, 1, K)},
        **{speculating_at(k): program(drafting, k) for k in (1, K)},
    }


def measure_programs(config: EngineConfig, rounds: int) -> Timings:
    """Every program once a round, in a fresh random order."""
    runs = programs(config)
    order, shuffle, timings = list(runs), random.Random(0), Timings()
    for index in tqdm(range(WARM_UP_STEPS + rounds), unit="round"):
        shuffle.shuffle(order)
        for name in order:
            seconds = runs[name]()
            if index >= WARM_UP_STEPS:
                timings.add(name, seconds)
    return timings


@dataclass(frozen=True, slots=True)
class BatchCost:
    """A full engine at K=0."""

    step: float
    """Median seconds a step."""
    host: float
    """Mean seconds a step outside device programs."""

    @property
    def tokens_per_second(self) -> float:
        """Of all sequences together."""
        return BATCH / self.step


def measure_batch(engine: Engine, steps: int) -> BatchCost:
    """BATCH sequences that decode for `steps` steps."""
    sampling = SamplingParams(temperature=0.0, max_tokens=WARM_UP_STEPS + steps + BATCH, ignore_eos=True)
    for index in range(BATCH):
        prompt = tuple(range(100 + index, 100 + index + CONTEXT))
        engine.add_request(GenerationRequest(f"benchmark-{index}", prompt, sampling))
    for _ in range(WARM_UP_STEPS):
        engine.step()
    before, seconds = engine.stats(), list[float]()
    for _ in range(steps):
        begin = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - begin)
    after = engine.stats()
    host = (after.busy_seconds - before.busy_seconds) - (after.program_seconds - before.program_seconds)
    return BatchCost(median(seconds), host / steps)


def report(timings: Timings, batch: BatchCost) -> str:
    """A Markdown list of figures."""
    one, widest = target_at(0), target_at(K)
    columns = (speculating_at(K), speculating_at(1), widest, target_at(1))
    drafts = [
        ((wide - narrow) - (wide_target - narrow_target)) / (K - 1)
        for wide, narrow, wide_target, narrow_target in zip(*(timings.seconds[name] for name in columns), strict=True)
    ]
    return "\n".join(
        [
            *(f"* {name}: {timings.milliseconds(name):.2f} ms" for name in timings.seconds),
            f"* target step at 1 row over the read of its weights: {timings.ratio(one, READ):.2f}",
            f"* verifying {1 + K} rows over 1 row: {timings.ratio(widest, one):.2f}",
            f"* one draft step: {1e3 * median(drafts):.2f} ms, "
            f"{100 * median_ratio(drafts, timings.seconds[one]):.1f} % of a target step at 1 row",
            f"* batch {BATCH}, K=0: {1e3 * batch.step:.1f} ms a step, {batch.tokens_per_second:.0f} tokens/s, "
            f"host {1e3 * batch.host:.2f} ms a step",
        ]
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", help="id of the model in the config; its first one by default")
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    model = load_own_model(args.config, args.model)
    config = engine_for_measuring(with_local_checkpoints(model.engine_config), K, BATCH)
    timings = measure_programs(config, args.rounds)
    batch = measure_batch(build_engine(config, FixedK(0)), args.rounds)
    print(report(timings, batch))
    print(json.dumps(provenance()))


if __name__ == "__main__":
    main()
