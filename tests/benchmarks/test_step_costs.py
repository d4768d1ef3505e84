from pathlib import Path

import pytest

from benchmarks.step_costs import (
    READ,
    BatchCost,
    K,
    Timings,
    decode_plan,
    report,
    speculating_at,
    target_at,
    target_weight_bytes,
)
from replicas.models.registry import target_config
from tests.reference.tiny_checkpoints import write_target


def test_a_draft_step_is_what_it_adds_beyond_wider_verification() -> None:
    timings = Timings()
    for slow in (1, 2):
        for name, milliseconds in {
            READ: 8,
            target_at(0): 10,
            target_at(1): 11,
            target_at(K): 13,
            speculating_at(1): 12,
            speculating_at(K): 16,
        }.items():
            timings.add(name, slow * milliseconds / 1e3)
    lines = report(timings, BatchCost(step=0.04, host=0.0005)).splitlines()
    assert "* target step at 1 row over the read of its weights: 1.25" in lines
    assert "* verifying 6 rows over 1 row: 1.30" in lines
    # 16 - 12 ms for four more drafts and four more rows, which take 13 - 11 ms: 0.5 ms a draft, in the median round.
    assert "* one draft step: 0.75 ms, 5.0 % of a target step at 1 row" in lines
    assert lines[-1] == "* batch 8, K=0: 40.0 ms a step, 200 tokens/s, host 0.50 ms a step"


def test_the_widest_program_verifies_every_draft() -> None:
    (batch,) = decode_plan(5, block_size=16).batches
    (sequence,) = batch.sequences
    assert (len(sequence.token_ids), sequence.num_drafts, batch.num_speculative_tokens) == (6, 5, 5)
    assert len(sequence.block_table) * 16 >= sequence.start + 2 * K + 1


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_counts_where_it_is_the_head(tmp_path: Path, tied: bool) -> None:
    write_target(tmp_path, seed=0, tie_word_embeddings=tied)
    shape = target_config(tmp_path)
    embedding = shape.vocab_size * shape.hidden_size
    layer = sum(
        (
            2 * shape.hidden_size,
            2 * shape.hidden_size * shape.num_heads * shape.head_dim,
            2 * shape.hidden_size * shape.num_kv_heads * shape.head_dim,
            3 * shape.hidden_size * shape.intermediate_size,
        )
    )
    assert target_weight_bytes(tmp_path, shape, 2) == 2 * (embedding + shape.num_layers * layer + shape.hidden_size)
