"""Packing plans into fixed shapes."""

from dataclasses import replace

import pytest

from replicas.kv_cache.paged_cache import CacheView
from replicas.runner.batch_inputs import BatchInputs, pack
from replicas.runner.programs import ProgramSet
from replicas.runner.shape_buckets import ShapeBuckets
from replicas.scheduling.step_plan import BatchPlan, SequencePlan, TokenChoice

BLOCK_SIZE = 4
NUM_BLOCKS = 40
BUCKETS = ShapeBuckets.build(8, 64, 128, BLOCK_SIZE, range(5))
GREEDY = TokenChoice(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
SAMPLED = TokenChoice(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=77)


def packed(batch: BatchPlan, attends_in_place: bool = True) -> BatchInputs:
    programs = ProgramSet(BUCKETS, NUM_BLOCKS, attends_in_place, merges_variants=False)
    return pack(batch.sequences, programs.of(batch), BLOCK_SIZE, vocab_size=200)


def decoding(tokens: tuple[int, ...], start: int, table: tuple[int, ...], choice: TokenChoice = GREEDY) -> SequencePlan:
    return SequencePlan("a", tokens, start, len(tokens) - 1, None, 2, table, choice)


def test_a_decode_batch_is_padded_to_its_bucket() -> None:
    parts = tuple(decoding((50 + row, 60, 61)[: row + 1], 10 * row, (3 + row, 20 + row)) for row in range(3))
    full = (*parts, decoding((53,), 5, (9, 9)), decoding((54,), 6, (10, 1, 2)))
    inputs = packed(BatchPlan(full, 2, is_prefill=False))
    assert inputs.token_ids.shape == (6, 3)
    assert inputs.token_ids.tolist()[:3] == [[50, 0, 0], [51, 60, 0], [52, 60, 61]]
    assert inputs.positions.tolist() == [
        [0, -1, -1],
        [10, 11, -1],
        [20, 21, 22],
        [5, -1, -1],
        [6, -1, -1],
        [-1, -1, -1],
    ]
    assert inputs.num_drafts.tolist() == [0, 1, 2, 0, 0, 0]
    assert inputs.draft_ids.tolist()[:3] == [[0, 0], [60, 0], [60, 61]]
    assert inputs.choice_rows.tolist()[:5] == [[0, 1, 2]] * 5
    assert inputs.block_tables.shape == (6, 16)
    assert inputs.block_tables[4].tolist() == [10, 1, 2] + [0] * 13
    assert inputs.block_tables[5].tolist() == [0] * 16
    assert (inputs.next_prompt_ids == -1).all()
    assert inputs.sampling is None
    assert inputs.view is None


@pytest.mark.parametrize(("next_token", "last"), [(99, 99), (None, -1)])
def test_a_chunk_of_a_prompt(next_token: int | None, last: int) -> None:
    part = SequencePlan("a", (5, 6, 7), 16, 0, next_token, 0, (1, 2, 3, 4, 5), GREEDY)
    inputs = packed(BatchPlan((part,), 0, is_prefill=True))
    assert inputs.token_ids.tolist() == [[5, 6, 7] + [0] * 13]
    assert inputs.positions.tolist() == [[16, 17, 18] + [-1] * 13]
    assert inputs.next_prompt_ids.tolist() == [[6, 7, last] + [-1] * 13]
    assert inputs.choice_rows.tolist() == [[2]]
    assert inputs.draft_ids.shape == (1, 0)


def test_sampling_of_a_mixed_batch_pads_with_greedy() -> None:
    table = (1, 2)
    parts = (
        decoding((1,), 3, table, SAMPLED),
        decoding((1,), 3, table),
        decoding((1,), 3, table),
        decoding((1,), 3, table),
    )
    sampling = packed(BatchPlan((*parts, parts[0]), 0, is_prefill=False)).sampling
    assert sampling is not None
    assert sampling.temperature.tolist() == [0.5, 0.0, 0.0, 0.0, 0.5, 0.0]
    assert sampling.top_k.tolist() == [3, 0, 0, 0, 3, 0]
    assert sampling.seed.tolist() == [77, 0, 0, 0, 77, 0]
    assert sampling.top_p.tolist() == pytest.approx([0.9, 1, 1, 1, 0.9, 1])
    assert sampling.min_p.tolist() == pytest.approx([0.1, 0, 0, 0, 0.1, 0])
    assert sampling.is_filtered


def test_what_one_sequence_asks_the_program_of_the_batch_has() -> None:
    table = (1, 2)
    penalised = replace(GREEDY, presence_penalty=0.5, num_prompt_tokens=1)
    plain = packed(BatchPlan((decoding((1,), 3, table),), 0, is_prefill=False))
    assert (plain.adjustments, plain.wants_logprobs, plain.wants_prompt_logprobs) == (None, False, False)
    parts = (
        decoding((1,), 3, table),
        replace(decoding((1,), 3, table, penalised), history=(4, 5, 6, 1)),
        decoding((1,), 3, table, replace(GREEDY, num_logprobs=0, num_prompt_logprobs=0)),
    )
    inputs = packed(BatchPlan(parts, 0, is_prefill=False))
    assert inputs.adjustments is not None
    assert inputs.adjustments.penalties is not None
    assert inputs.adjustments.penalties.history.shape == (3, inputs.block_tables.shape[1] * BLOCK_SIZE)
    assert (inputs.wants_logprobs, inputs.wants_prompt_logprobs) == (True, False)
    prefill = packed(BatchPlan((parts[2],), 0, is_prefill=True))
    assert (prefill.adjustments, prefill.wants_logprobs, prefill.wants_prompt_logprobs) == (None, True, True)


def test_temperature_alone_needs_no_filter() -> None:
    choice = TokenChoice(temperature=0.5, top_k=0, top_p=1.0, min_p=0.0, seed=1)
    sampling = packed(BatchPlan((decoding((1,), 3, (1, 2), choice),), 0, is_prefill=False)).sampling
    assert sampling is not None
    assert not sampling.is_filtered


@pytest.mark.parametrize(
    ("table", "view"),
    [
        ((5, 6, 7), CacheView(20)),
        ((5,), CacheView(20)),
        ((24, 25), CacheView(96)),
        ((25, 26), None),  # The padded context of 16 blocks would leave the cache.
        ((5, 7), None),
        ((5, 7, 6), None),
        ((7, 6, 5), None),
        ((5, 6, 6, 8), None),
    ],
)
def test_a_lone_sequence_in_neighbouring_blocks_is_attended_in_place(
    table: tuple[int, ...], view: CacheView | None
) -> None:
    batch = BatchPlan((decoding((1,), 3, table),), 0, is_prefill=False)
    assert packed(batch).view == view
    assert packed(batch, attends_in_place=False).view is None
