"""A replica owns tensor_parallel_size NeuronCores that nobody else has; more replicas than cores wait, and say so."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.script_answer import answer_of
from tests.reference.tiny_checkpoints import write_target

pytestmark = [pytest.mark.scaling, pytest.mark.timeout(400)]


def groups(folder: Path, *numbers: int) -> dict[str, Any]:
    """Of tests.integration.core_groups: raylets, cores a raylet, cores a group, replicas."""
    write_target(folder)
    return answer_of("tests.integration.core_groups", *map(str, numbers), str(folder), timeout_s=380)


def test_groups_of_one_raylet_are_disjoint_and_one_more_replica_waits(tmp_path: Path) -> None:
    seen = groups(tmp_path, 1, 4, 2, 3)
    owned = [set(replica["cores"].split(",")) for replica in seen["replicas"]]
    assert [len(cores) for cores in owned] == [2, 2]
    assert owned[0] | owned[1] == {"0", "1", "2", "3"}
    # A rank is a process of the replica, and is given the same.
    assert [replica["rank_cores"] for replica in seen["replicas"]] == [replica["cores"] for replica in seen["replicas"]]
    assert [replica["bundles"] for replica in seen["replicas"]] == [[{"CPU": 0.5, "neuron_cores": 2.0}]] * 2
    assert seen["states"]["RUNNING"] == 2
    assert sum(seen["states"].values()) == 3
    assert seen["status"] == "UPDATING"
    assert "1 replicas that have taken more than" in seen["message"]
    assert "neuron_cores" in seen["message"]


def test_groups_of_three_raylets_never_span_two(tmp_path: Path) -> None:
    # Three cores a raylet: one group of two on each, and a core left over that makes no group with another's.
    seen = groups(tmp_path, 3, 3, 2, 4)
    assert len({replica["node"] for replica in seen["replicas"]}) == 3
    assert [len(replica["cores"].split(",")) for replica in seen["replicas"]] == [2, 2, 2]
    assert seen["states"]["RUNNING"] == 3
    assert "1 replicas that have taken more than" in seen["message"]
