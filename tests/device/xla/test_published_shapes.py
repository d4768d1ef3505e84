"""The same made checkpoints as tests/integration/test_published_shapes.py, in bf16 through XLA: `make test-shapes`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.published_models import LLAMA_31_8B, QWEN3_8B
from tests.device.xla.test_ranks import DRAFTS, SUMMED
from tests.device.xla.watched_engine import FORBIDDEN, WIDE
from tests.reference.measured_process import PROJECT_ROOT, measured
from tests.reference.published_checkpoints import LAYERS, MadePair, write_pair

pytestmark = [pytest.mark.shapes, pytest.mark.timeout(1800)]

COUNT = 4
RUN_S = 900
GIB = 2**30
RANKS = 2


@pytest.fixture(scope="module", params=[LLAMA_31_8B, QWEN3_8B], ids=["llama", "qwen3"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadePair]:
    """Written, and removed afterwards: 4 GB."""
    folder: Path = tmp_path_factory.mktemp("published")
    yield write_pair(request.param, folder)
    shutil.rmtree(folder)


def test_steps_are_lowered_and_say_the_known_tokens(pair: MadePair) -> None:
    prompt = ",".join(map(str, pair.prompt))
    arguments = [str(pair.target), str(pair.head), "xla-cpu", "1", prompt, str(COUNT)]
    found = measured(["tests.reference.published_run", *arguments], RUN_S, pair.target.parent / "log")
    told = found.told
    print(
        f"\nxla-cpu: at most {found.peak_own_bytes / GIB:.2f} GiB of its own, "
        f"{found.peak_bytes / GIB:.2f} with pages of files; {told}"
    )
    assert told["drafted"] == told["plain"] == pair.answer(COUNT)
    assert 0 < told["num_accepted"] < told["num_drafted"]
    # One graph a program, one execute a call, nothing on the host, caches updated where they lie.
    assert told["compiled"] == told["programs"]
    assert told["executed"] == told["calls"]
    assert (told["fallbacks"], told["forbidden"], told["places_of_states"]) == ([], [], [1, 1])


def test_two_ranks_share_one_graph_of_full_widths(pair: MadePair, tmp_path: Path) -> None:
    """Traced and not run: XLA's CPU client has no collectives."""
    script = [sys.executable, str(Path(__file__).with_name("traced_ranks.py"))]
    command = [*script, str(pair.target), str(pair.head), str(tmp_path), str(RANKS), "greedy", "bfloat16"]
    environment = os.environ | {"PYTHONPATH": str(PROJECT_ROOT)}
    subprocess.run(command, cwd=PROJECT_ROOT, env=environment, check=True, timeout=RUN_S)
    first, other = ((tmp_path / f"greedy-{rank}.hlo").read_text() for rank in range(RANKS))
    assert other == first
    lines = [line.strip() for line in first.splitlines()]
    assert [line for line in lines if WIDE.search(line) or FORBIDDEN.search(line)] == []
    sums = (1 + 2 * LAYERS) + 3 * DRAFTS
    assert len(SUMMED.findall(first)) == sums + 2 * (1 + DRAFTS)
    vocab = len(pair.successors)
    # Each rank has half of the rows, and nobody sees all scores.
    assert f"bf16[{vocab // RANKS},4096]" in first
    assert f",{vocab}]" not in first
