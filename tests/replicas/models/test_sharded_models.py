"""Targets over several ranks, here threads: the states and logits of one rank, and each rank reads its part alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from replicas.devices.collectives import Collectives
from replicas.devices.cpu import CpuBackend
from replicas.models import checkpoint
from replicas.models.vocabulary import Embedding, VocabularyHead
from tests.reference.target_runs import load
from tests.reference.thread_ranks import on_ranks
from tests.reference.tiny_checkpoints import HIDDEN, VOCAB, write_target


class CountingFile:
    """A safetensors file that counts the elements that come out of it."""

    def __init__(self, file: Any, taken: dict[str, int]) -> None:
        self._file, self._taken = file, taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> Tensor:
        return self._count(name, self._file.get_tensor(name))

    def get_slice(self, name: str) -> Any:
        outer, view = self, self._file.get_slice(name)

        class View:
            def get_shape(self) -> Any:
                return view.get_shape()

            def __getitem__(self, ranges: Any) -> Tensor:
                return outer._count(name, view[ranges])

        return View()

    def _count(self, name: str, tensor: Tensor) -> Tensor:
        self._taken[name] = self._taken.get(name, 0) + tensor.numel() * tensor.element_size()
        return tensor


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that were read so far, by tensor."""
    counts: dict[str, int] = {}
    opened = checkpoint.safe_open

    class Opener:
        def __init__(self, *args: Any, **options: Any) -> None:
            self._opened = opened(*args, **options)

        def __enter__(self) -> CountingFile:
            return CountingFile(self._opened.__enter__(), counts)

        def __exit__(self, *error: Any) -> None:
            self._opened.__exit__(*error)

    monkeypatch.setattr(checkpoint, "safe_open", Opener)
    return counts


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_rank_reads_its_part_of_the_file(size: int, tmp_path: Path, taken: dict[str, int]) -> None:
    write_target(tmp_path)

    class Last:
        """The last of `size` ranks, loading alone."""

        rank = size - 1

        def __init__(self) -> None:
            self.size = size

    load(tmp_path, CpuBackend("float32", num_threads=1, collectives=Last()))  # pyright: ignore[reportArgumentType]
    kv_heads = max(2 // size, 1)
    whole = {
        "model.embed_tokens.weight": VOCAB * HIDDEN // size,
        "lm_head.weight": VOCAB * HIDDEN // size,
        "model.layers.0.self_attn.q_proj.weight": HIDDEN * HIDDEN // size,
        "model.layers.0.self_attn.k_proj.weight": kv_heads * 16 * HIDDEN,
        "model.layers.0.self_attn.o_proj.weight": HIDDEN * HIDDEN // size,
        "model.layers.0.mlp.gate_proj.weight": 96 * HIDDEN // size,
        "model.layers.0.mlp.down_proj.weight": 96 * HIDDEN // size,
        "model.norm.weight": HIDDEN,
    }
    assert {name: taken[name] for name in whole} == {name: 4 * count for name, count in whole.items()}


def test_the_best_token_of_a_divided_vocabulary_needs_no_logits() -> None:
    """Two numbers a row are exchanged; of equal scores the first wins, on whichever rank; padding never does."""
    states = torch.eye(5)
    # Every logit is below 0, so that a padding row's 0 would win.
    scores = torch.randn(5, 11, generator=torch.Generator().manual_seed(0)) - 10
    for row, places in enumerate([(2, 7), (10, 4), (0, 1), (10, 10), (5, 9)]):
        scores[row, list(places)] = -1.0

    def body(collectives: Collectives) -> tuple[list[int], list[int], Tensor]:
        backend = CpuBackend("float32", num_threads=1, collectives=collectives)
        rows = torch.zeros(12, 5)
        rows[:11] = scores.T
        head = VocabularyHead(rows.chunk(4)[collectives.rank], 11, backend)
        return head.best(states).tolist(), head.best(states, below=4).tolist(), head.logits(states)

    found, meeting = on_ranks(4, body)
    for best, of_four, logits in found:
        assert best == [2, 4, 0, 10, 5]
        assert of_four == scores[:, :4].argmax(1).tolist()
        torch.testing.assert_close(logits, scores)
    assert meeting.elements == {"maximum": 10, "minimum": 10, "gather": 15}


def test_an_embedding_of_a_divided_vocabulary() -> None:
    table = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([0, 11, 3, 2, 5, 8, 8], dtype=torch.int32)

    def body(collectives: Collectives) -> tuple[Tensor, tuple[int, int]]:
        backend = CpuBackend("float32", num_threads=1, collectives=collectives)
        embedding = Embedding(table.chunk(4)[collectives.rank], backend)
        return embedding(ids), embedding.shape

    for rows, shape in on_ranks(4, body)[0]:
        assert torch.equal(rows, table[ids])
        assert shape == (12, 3)
