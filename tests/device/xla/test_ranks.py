"""Tensor parallelism in graphs: a two-device world is traced, which is as far as XLA's CPU client goes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.xla.watched_engine import FORBIDDEN, WIDE
from tests.reference.tiny_checkpoints import LAYERS

RANKS = 2
DRAFTS = 3
SUMMED = re.compile(r"all-reduce\(.*replica_groups=\{\{0,1\}\}")


@pytest.fixture(scope="module")
def traces(target_folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """HLO of a step on every rank, by sampling."""
    out = tmp_path_factory.mktemp("hlo")
    root = Path(__file__).parents[3]
    script = [sys.executable, str(Path(__file__).with_name("traced_ranks.py"))]
    traces: dict[str, list[str]] = {}
    for sampling in ("greedy", "sampled"):
        command = [*script, str(target_folder), str(head), str(out), str(RANKS), sampling]
        subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=True, timeout=200)
        traces[sampling] = [(out / f"{sampling}-{rank}.hlo").read_text() for rank in range(RANKS)]
    return traces


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_all_ranks_share_one_graph(sampling: str, traces: dict[str, list[str]]) -> None:
    first, *others = traces[sampling]
    assert others == [first]
    lines = [line.strip() for line in first.splitlines()]
    assert [line for line in lines if WIDE.search(line) or FORBIDDEN.search(line)] == []


def test_a_step_holds_the_all_reduces(traces: dict[str, list[str]]) -> None:
    """Embedding, attention and MLP of every layer add up; the best of a vocabulary takes a maximum and a minimum."""
    forwards = [(1, 2 * LAYERS), *[(1, 2)] * DRAFTS]
    sums = sum(embeddings + layers for embeddings, layers in forwards)
    extremes = 2 * (1 + DRAFTS)
    assert len(SUMMED.findall(traces["greedy"][0])) == sums + extremes
    # Sampling gathers the target's logits once more.
    assert len(SUMMED.findall(traces["sampled"][0])) == sums + extremes - 2 + 1
