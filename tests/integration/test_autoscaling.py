"""One to three replicas and back, and to zero and back, on a real cluster with a tiny model."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.script_answer import answer_of
from tests.reference.tiny_checkpoints import write_target

pytestmark = [pytest.mark.scaling, pytest.mark.timeout(600)]


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    write_target(folder)
    variables = {
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    }
    arguments = ("benchmarks.scaling", "--model", str(folder), "--max-tokens", "128", *arguments)
    return answer_of(*arguments, timeout_s=580, variables=variables)


def test_one_to_three_replicas_and_back(tmp_path: Path) -> None:
    seen = run(tmp_path, "--load-s", "60")
    counts = [count for _, count in seen["replicas"]]
    assert (counts[0], max(counts), counts[-1]) == (1, 3, 1)
    # Up once and down once: the load was steady in between.
    assert sum((b > a) != (c > b) for (a, b), (_, c) in pairwise(pairwise(counts))) == 1
    assert seen["failures"] == []
    assert seen["answered"] > 50


def test_zero_to_replicas_and_back_with_the_first_request_kept(tmp_path: Path) -> None:
    seen = run(tmp_path, "--min-replicas", "0", "--load-s", "5")
    counts = [count for _, count in seen["replicas"]]
    # Before the first request, after the last of the load; the request after that was answered too.
    assert counts[0] == 0
    assert 0 in counts[1:]
    assert counts[-1] >= 1
    assert seen["failures"] == []
    assert len(seen["first_answers_s"]) == 3
