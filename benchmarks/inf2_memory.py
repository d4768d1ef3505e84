"""The table of docs/inf2.md: what published models take of each core of an inf2, and how many sequences that leaves.

python -m benchmarks.inf2_memory
"""

from benchmarks.published_models import PAIRS, PublishedPair
from replicas.config import EngineConfig, SpeculativeConfig
from replicas.devices.memory_plan import MemoryPlan, gib
from replicas.engine_memory import placement_of, plan_models
from replicas.engine_programs import buckets_of

RANKS = (1, 2, 4, 8)
MAX_MODEL_LEN = 8192
MAX_NUM_SEQS = 8
NUM_SPECULATIVE_TOKENS = 5
"""As in the first seed's example."""


def engine_config(pair: PublishedPair, ranks: int) -> EngineConfig:
    """An engine for `pair`; it is never built."""
    head = SpeculativeConfig(
        method="eagle3",
        model=pair.name,
        num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
        allowed_num_speculative_tokens=(NUM_SPECULATIVE_TOKENS,),
    )
    return EngineConfig(
        model=pair.name,
        device="neuron",
        dtype="bfloat16",
        tensor_parallel_size=ranks,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        speculative_config=head,
    )


def plan(pair: PublishedPair, ranks: int) -> MemoryPlan:
    """The plan of one rank."""
    config = engine_config(pair, ranks)
    target, head = pair.stored_target(MAX_MODEL_LEN), pair.stored_head(MAX_MODEL_LEN)
    return plan_models(config, buckets_of(config), placement_of(config), target, head)


def table() -> str:
    """Markdown; GiB a core."""
    lines = [
        "| model | tensor parallel | weights | head | rotary tables | programs at work | reserve | left for KV | "
        "KV of one sequence | sequences |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for pair in PAIRS:
        for ranks in RANKS:
            found = plan(pair, ranks)
            left = found.pool.capacity - found.fixed
            parts = [
                found.target_weights,
                found.drafter_weights,
                found.rotary_tables,
                found.working,
                found.pool.reserved,
                max(left, 0),
                found.block_bytes * found.blocks_a_sequence,
            ]
            fits = str(found.sequences_that_fit) if found.sequences_that_fit else "does not fit"
            lines.append(f"| {pair.name} | {ranks} | {' | '.join(map(gib, parts))} | {fits} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
