"""From sizes to blocks, and the sentence for what cannot fit."""

from dataclasses import replace

import pytest

from replicas.devices.memory_plan import GIB, LargestProgram, MemoryPlan, MemoryPool, plan_memory
from replicas.devices.weight_sizes import DecoderSizes, Precision, Shape, StoredModel
from replicas.errors import ConfigError

SIZES = DecoderSizes(hidden_size=8, intermediate_size=16, num_heads=4, num_kv_heads=2, head_dim=2, num_layers=3)
TENSORS: dict[str, Shape] = {"model.embed_tokens.weight": (10, 8), "lm_head.weight": (10, 8)}
PROGRAM = LargestProgram(batch_size=2, chunk_tokens=4, decode_tokens=3, context_tokens=20)
PLAN = MemoryPlan(
    pool=MemoryPool("one core", 16 * GIB, GIB),
    ranks=2,
    target_weights=6 * GIB,
    drafter_weights=GIB,
    rotary_tables=GIB // 4,
    working=GIB // 4,
    block_bytes=GIB // 64,
    block_size=16,
    blocks_a_sequence=128,
    asked_blocks=None,
    wanted_blocks=1 + 8 * 128,
)


def plan(drafter: StoredModel | None = None, ranks: int = 1, program: LargestProgram = PROGRAM) -> MemoryPlan:
    pool = MemoryPool("one core", 10_000, 100)
    target = StoredModel(SIZES, TENSORS, positions=32, vocab_size=10)
    return plan_memory(pool, ranks, Precision(2, 4), target, drafter, program, False, 8, 2, None)


def test_kv_is_counted_in_blocks_of_target_and_drafter() -> None:
    assert plan().block_bytes == 8 * 4 * (3 * 2 * 2 * 2)
    head = StoredModel(replace(SIZES, num_layers=1), TENSORS, positions=32, vocab_size=10)
    assert plan(head).block_bytes == 8 * 4 * (3 + 1) * 2 * 2 * 2
    assert plan(head, ranks=2).block_bytes == 8 * 4 * (3 + 1) * 2 * 1 * 2
    # 20 tokens are 3 blocks of 8; two sequences and the null block.
    assert (plan().blocks_a_sequence, plan().wanted_blocks) == (3, 7)


def test_rotary_tables_span_query_key_and_value_heads() -> None:
    assert plan().rotary_tables == 2 * 4 * 32 * (4 + 2 * 2) * 2
    assert plan(ranks=2).rotary_tables == 2 * 4 * 32 * (2 + 2 * 1) * 2


def test_a_program_at_work_holds_its_rows_its_scores_its_logits_and_the_context_that_it_gathered() -> None:
    rows, gathered = 2 * 3, 2 * 20 * 2 * 2 * 2
    activations = rows * (6 * 8 + 4 * 8 * 2 + 3 * 16) + rows * 20 * (2 + 4)
    assert plan().working == 4 * (activations + gathered) + rows * 10 * 3 * 4
    # A long chunk needs more than decoding.
    longer = plan(program=replace(PROGRAM, chunk_tokens=64))
    assert longer.working == 4 * (64 * 160 + 64 * 20 * 6 + gathered) + 10 * 3 * 4
    # The head gathers into a buffer of its own.
    head = StoredModel(replace(SIZES, num_layers=1), TENSORS, positions=32, vocab_size=10)
    assert plan(head).working == plan().working + 4 * gathered


def test_where_weights_are_converted_the_largest_counts_twice_in_float32() -> None:
    target = StoredModel(SIZES, TENSORS | {"model.norm.weight": (10_000,)}, positions=32, vocab_size=10)
    pool = MemoryPool("this machine", GIB)
    found = plan_memory(pool, 1, Precision(2, 4), target, None, PROGRAM, True, 8, 2, None)
    assert found.working == 2 * 4 * 10_000


def test_blocks_and_sequences_follow_from_what_is_left() -> None:
    assert PLAN.fixed == 8.5 * GIB
    assert PLAN.blocks_that_fit == 7.5 * 64
    assert PLAN.sequences_that_fit == 3
    assert PLAN.num_blocks == 480
    assert replace(PLAN, wanted_blocks=257).num_blocks == 257
    assert replace(PLAN, asked_blocks=400).num_blocks == 400
    PLAN.check()
    replace(PLAN, asked_blocks=480).check()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"asked_blocks": 481},
            "16.02 GiB are needed of one core, which has 16.00 (weights 6.00, drafter 1.00, rotary tables 0.25, "
            "programs at work 0.25, reserve 1.00, KV of 481 blocks 7.52): num_blocks may be at most 480",
        ),
        (
            {"blocks_a_sequence": 512},
            "16.52 GiB are needed of one core, which has 16.00 (weights 6.00, drafter 1.00, rotary tables 0.25, "
            "programs at work 0.25, reserve 1.00, KV of one sequence of max_model_len 8.02): "
            "max_model_len may be at most 7664",
        ),
        (
            {"target_weights": 15 * GIB},
            "19.52 GiB are needed of one core, which has 16.00 (weights 15.00, drafter 1.00, rotary tables 0.25, "
            "programs at work 0.25, reserve 1.00, KV of one sequence of max_model_len 2.02): "
            "lower max_num_batched_tokens, raise tensor_parallel_size above 2, or take a smaller model",
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(changes: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(PLAN, **changes).check()
    assert str(caught.value) == sentence
