"""Which heads, rows and columns each rank keeps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from replicas.models.checkpoint import SINGLE_FILE, Checkpoint
from replicas.models.model_config import ModelConfig, model_config
from replicas.models.padding import PaddedSize
from replicas.models.sharding import RankShare, RankSlice
from tests.reference.tiny_checkpoints import tiny_config


def config(heads: int, kv_heads: int) -> ModelConfig:
    """A model with heads of 2 elements."""
    shape = model_config(tiny_config(architectures=["LlamaForCausalLM"]))
    return replace(shape, num_heads=heads, num_kv_heads=kv_heads, head_dim=2, intermediate_size=10)


def heads_of(part: RankSlice) -> tuple[int, int, int]:
    """(first head, end, padded count)."""
    assert part.start % 2 == part.stop % 2 == part.padded % 2 == 0
    return part.start // 2, part.stop // 2, part.padded // 2


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "queries", "keys"),
    [
        (8, 4, 1, [(0, 8, 8)], [(0, 4, 4)]),
        (8, 4, 2, [(0, 4, 4), (4, 8, 4)], [(0, 2, 2), (2, 4, 2)]),
        # SmolLM2: the second rank has one KV head and its three query heads, then padding.
        (9, 3, 2, [(0, 6, 6), (6, 9, 6)], [(0, 2, 2), (2, 3, 2)]),
        # One KV head a rank; the fourth rank has none.
        (9, 3, 4, [(0, 3, 3), (3, 6, 3), (6, 9, 3), (9, 9, 3)], [(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 3, 1)]),
        # Two copies of each KV head, whose query heads their ranks divide.
        (8, 2, 4, [(0, 2, 2), (2, 4, 2), (4, 6, 2), (6, 8, 2)], [(0, 1, 1), (0, 1, 1), (1, 2, 1), (1, 2, 1)]),
        # Three query heads for two ranks: two, and one with padding.
        (6, 2, 4, [(0, 2, 2), (2, 3, 2), (3, 5, 2), (5, 6, 2)], [(0, 1, 1), (0, 1, 1), (1, 2, 1), (1, 2, 1)]),
        (4, 1, 3, [(0, 2, 2), (2, 4, 2), (4, 4, 2)], [(0, 1, 1), (0, 1, 1), (0, 1, 1)]),
    ],
)
def test_heads(
    heads: int, kv_heads: int, size: int, queries: list[tuple[int, int, int]], keys: list[tuple[int, int, int]]
) -> None:
    shape = config(heads, kv_heads)
    shares = [RankShare(size, rank) for rank in range(size)]
    assert [heads_of(share.queries(shape)) for share in shares] == queries
    assert [heads_of(share.keys(shape)) for share in shares] == keys
    mine = {share.config(shape) for share in shares}
    assert [(c.num_heads, c.num_kv_heads) for c in mine] == [(queries[0][2], keys[0][2])]


@pytest.mark.parametrize("size", range(1, 13))
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (9, 3), (6, 1), (12, 4), (32, 8), (7, 1)])
def test_every_query_head_has_one_rank_which_has_its_kv_head(size: int, heads: tuple[int, int]) -> None:
    shape = config(*heads)
    seen: list[int] = []
    for rank in range(size):
        share = RankShare(size, rank)
        first, end, padded = heads_of(share.queries(shape))
        first_key, end_key, padded_keys = heads_of(share.keys(shape))
        assert padded % padded_keys == 0
        for index, head in enumerate(range(first, end)):
            # Attention pairs the rank's own heads so.
            assert head // shape.query_group == first_key + index // (padded // padded_keys) < end_key
        seen += range(first, end)
    assert seen == list(range(heads[0]))


@pytest.mark.parametrize(
    ("stored", "size", "multiple", "parts"),
    [
        (10, 2, 1, [(0, 5, 5), (5, 10, 5)]),
        (10, 4, 1, [(0, 3, 3), (3, 6, 3), (6, 9, 3), (9, 10, 3)]),
        (10, 1, 16, [(0, 10, 16)]),
        (10, 2, 16, [(0, 8, 8), (8, 10, 8)]),
        (3, 4, 1, [(0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 3, 1)]),
        (5, 4, 1, [(0, 2, 2), (2, 4, 2), (4, 5, 2), (5, 5, 2)]),
    ],
)
def test_equal_parts(stored: int, size: int, multiple: int, parts: list[tuple[int, int, int]]) -> None:
    found = [RankShare(size, rank).even(stored, multiple) for rank in range(size)]
    assert [(part.start, part.stop, part.padded) for part in found] == parts
    assert {part.stored for part in found} == {stored}


class TestReading:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        save_file(
            {"a": torch.arange(60, dtype=torch.float16).view(10, 6), "b": torch.arange(10)}, tmp_path / SINGLE_FILE
        )
        return tmp_path

    @pytest.mark.parametrize("rank", range(4))
    def test_parts_are_what_cutting_the_whole_would_give(self, folder: Path, rank: int) -> None:
        rows, columns = RankShare(4, rank).even(10), RankShare(4, rank).even(6)
        with Checkpoint(folder) as checkpoint:
            whole = torch.nn.functional.pad(checkpoint["a"], (0, 2, 0, 2))
            assert torch.equal(checkpoint.tensor("a", rows, 6), whole[3 * rank : 3 * rank + 3, :6])
            assert torch.equal(checkpoint.tensor("a", 10, columns), whole[:10, 2 * rank : 2 * rank + 2])
            both = checkpoint.tensor("a", rows, PaddedSize(3, 4, 2))
            assert both.shape == (3, 8)
            assert both[:, [3, 7]].eq(0).all()
            assert checkpoint.tensor("b", rows).dtype == torch.int64

    def test_a_rank_without_a_part_has_zeros(self, folder: Path) -> None:
        with Checkpoint(folder) as checkpoint:
            assert checkpoint.tensor("a", RankSlice(10, 10, 10, 3), 6).tolist() == [[0.0] * 6] * 3
            assert checkpoint.tensor("a", 10, RankSlice(6, 6, 6, 2)).tolist() == [[0.0] * 2] * 10
            assert checkpoint.unread == ["b"]
