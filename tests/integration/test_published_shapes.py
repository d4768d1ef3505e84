"""The shapes that Llama-3.1-8B and Qwen3-8B are published with, and their heads: full widths, two layers, on the CPU.

    make test-shapes

What is said is known (tests.reference.published_checkpoints), and transformers' own model of the same files is asked
for the log-probabilities. The memory of each run is printed.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.published_models import LLAMA_31_8B, QWEN3_8B
from tests.reference.measured_process import Measured, measured
from tests.reference.published_checkpoints import MadePair, write_pair
from tests.reference.published_run import K

pytestmark = [pytest.mark.shapes, pytest.mark.timeout(1800)]

COUNT = 6
"""Tokens."""
RUN_S = 900
GIB = 2**30
MAX_OWN_BYTES = 6 * GIB


@pytest.fixture(scope="module", params=[LLAMA_31_8B, QWEN3_8B], ids=["llama", "qwen3"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadePair]:
    """Written, and removed afterwards: 4 GB."""
    folder: Path = tmp_path_factory.mktemp("published")
    yield write_pair(request.param, folder)
    shutil.rmtree(folder)


def run(pair: MadePair, device: str, ranks: int, prompt: list[int]) -> Measured:
    arguments = [str(pair.target), str(pair.head), device, str(ranks), ",".join(map(str, prompt)), str(COUNT)]
    found = measured(["tests.reference.published_run", *arguments], RUN_S, pair.target.parent / "log")
    print(
        f"\n{device}, {ranks} ranks: at most {found.peak_own_bytes / GIB:.2f} GiB of its own, "
        f"{found.peak_bytes / GIB:.2f} with pages of files; {found.told}"
    )
    return found


def test_the_engine_says_what_transformers_says_on_one_rank_and_on_two(pair: MadePair) -> None:
    answer = pair.answer(COUNT)
    library = run(pair, "transformers", 1, [*pair.prompt, *answer]).told
    assert library["likeliest"] == answer
    for ranks in (1, 2):
        found = run(pair, "cpu", ranks, list(pair.prompt))
        told = found.told
        assert told["drafted"] == told["plain"] == answer
        # bf16 there, weights of fp16 here.
        assert told["logprobs"] == pytest.approx(library["logprobs"], abs=0.1)
        # The head knows one token ahead: each step accepts one draft and recovers from the next.
        assert 0 < told["num_accepted"] < told["num_drafted"] <= K * told["steps"]
        assert told["steps"] < COUNT
        assert found.peak_own_bytes < MAX_OWN_BYTES
        assert found.peak_own_bytes < ranks * told["planned_bytes_a_rank"] + GIB // 2 * ranks
