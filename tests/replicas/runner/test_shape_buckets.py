import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicas.runner.shape_buckets import ShapeBuckets


def test_buckets_of_the_defaults() -> None:
    buckets = ShapeBuckets.build(8, 256, 2048, 16, range(6))
    assert buckets.batch_sizes == (1, 2, 3, 4, 6, 8)
    assert buckets.chunk_tokens == (16, 32, 48, 64, 96, 128, 192, 256)
    assert buckets.context_blocks == (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    assert buckets.speculative_tokens == (0, 1, 2, 3, 4, 5)


def test_coarse_buckets_double() -> None:
    buckets = ShapeBuckets.build(8, 256, 8192, 16, (5,), is_coarse=True)
    assert buckets.batch_sizes == (1, 2, 4, 8)
    assert buckets.chunk_tokens == (128, 256)
    assert [blocks * 16 for blocks in buckets.context_blocks] == [512, 1024, 2048, 4096, 8192]
    assert buckets.speculative_tokens == (0, 5)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(seqs=st.integers(1, 256), budget=st.integers(16, 600), length=st.integers(16, 3000), block=st.integers(1, 64))
def test_every_size_has_a_bucket_that_wastes_at_most_half(seqs: int, budget: int, length: int, block: int) -> None:
    buckets = ShapeBuckets.build(seqs, budget, length, block, (3,))
    blocks = -(-length // block)
    assert (buckets.batch_sizes[-1], buckets.chunk_tokens[-1], buckets.context_blocks[-1]) == (seqs, budget, blocks)
    for size in range(1, seqs + 1):
        assert size <= buckets.batch_size(size) < max(2, 1.5 * size + 1)
    for tokens in range(1, budget + 1):
        assert tokens <= buckets.chunk(tokens) <= max(16, 2 * tokens)
    for count in range(1, blocks + 1):
        assert count <= buckets.context(count)
        assert buckets.context(count) * block <= max(64, 2 * count * block) + block


@pytest.mark.parametrize(("seqs", "budget", "length"), [(1, 16, 16), (2, 17, 63), (3, 16, 65)])
def test_small_limits(seqs: int, budget: int, length: int) -> None:
    buckets = ShapeBuckets.build(seqs, budget, length, 16, ())
    assert buckets.batch_size(seqs) == seqs
    assert buckets.chunk(budget) == budget
    assert buckets.context(-(-length // 16)) == -(-length // 16)
