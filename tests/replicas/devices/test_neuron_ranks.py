"""The variables of one process a NeuronCore, as Neuron's documents describe them. Neuron untested."""

import pytest

from replicas.devices.environment import VISIBLE_VARIABLE
from replicas.devices.neuron_ranks import rank_environment
from replicas.errors import ConfigError


@pytest.mark.parametrize(("visible", "core"), [(None, "1"), ("4,5", "5"), ("2-7", "3")])
def test_a_rank_has_a_core_of_its_own(visible: str | None, core: str) -> None:
    environment = {} if visible is None else {VISIBLE_VARIABLE: visible}
    assert rank_environment(1, 2, 6200, environment) == {
        VISIBLE_VARIABLE: core,
        "NEURON_RT_ROOT_COMM_ID": "127.0.0.1:6200",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES": "1,1",
        "NEURON_PJRT_PROCESS_INDEX": "1",
    }


def test_fewer_cores_than_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"tensor_parallel_size is 4, but {VISIBLE_VARIABLE} is '0,1': 2 cores"):
        rank_environment(0, 4, 6200, {VISIBLE_VARIABLE: "0,1"})
