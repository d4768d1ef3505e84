"""The files in configs/k_schedules."""

from pathlib import Path
from typing import Any

import pytest

from replicas.errors import ConfigError
from serve_app.k_schedule import load_k_schedule
from tests.serve_app.k_schedules import schedule, write_schedule


def test_k_by_batch() -> None:
    assert [schedule().k_of(batch) for batch in range(11)] == [3, 3, 3, 3, 1, 1, 1, 1, 0, 0, 0]
    assert schedule().largest_k == 3


def test_a_schedule_comes_back_from_its_file(tmp_path: Path) -> None:
    assert load_k_schedule(write_schedule(tmp_path / "s.yaml")) == schedule()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"buckets": [{"from_batch": 2, "k": 1}]},
            "buckets[0].from_batch is 2; allowed: 1, so that every batch has a K",
        ),
        (
            {"buckets": [{"from_batch": 1, "k": 1}, {"from_batch": 4, "k": 0}, {"from_batch": 3, "k": 0}]},
            "buckets: from_batch 3 follows 4; allowed: ascending ones",
        ),
        ({"buckets": [{"from_batch": 1, "k": 17}]}, "buckets[0].k: got 17; it should be less than or equal to 16"),
        ({"buckets": [{"from_batch": 1, "K": 1}]}, "buckets[0].K: unknown key; allowed: from_batch, k"),
        ({"hold_steps": 0}, "hold_steps: got 0; it should be greater than or equal to 1"),
        (
            {"acceptance_by_position": [0.3, 0.4]},
            "acceptance_by_position: 0.4 follows 0.3; a later position is never accepted more often",
        ),
    ],
)
def test_a_wrong_schedule_is_one_sentence(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    path = write_schedule(tmp_path / "s.yaml", **changes)
    with pytest.raises(ConfigError) as caught:
        load_k_schedule(path)
    told = str(caught.value).splitlines()
    assert f"{path}: {line}" in told
    assert len(told) <= 2


def test_what_is_no_schedule_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the K schedule .*none\.yaml"):
        load_k_schedule(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("{")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_k_schedule(tmp_path / "bad.yaml")
