"""One process a NeuronCore: the variables that the Neuron runtime reads when it starts. Neuron untested."""

import os
from collections.abc import Mapping

from replicas.devices.environment import VISIBLE_VARIABLE
from replicas.devices.start_checks import parse_cores
from replicas.errors import ConfigError


def rank_environment(rank: int, size: int, port: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of rank `rank` of `size`, for the cores that `environment` makes visible, or the first `size`.

    Raises ConfigError if fewer cores are visible than there are ranks.
    """
    setting = environment.get(VISIBLE_VARIABLE)
    cores = list(range(size)) if setting is None else sorted(parse_cores(setting))
    if len(cores) < size:
        raise ConfigError(f"tensor_parallel_size is {size}, but {VISIBLE_VARIABLE} is {setting!r}: {len(cores)} cores")
    return {
        VISIBLE_VARIABLE: str(cores[rank]),
        "NEURON_RT_ROOT_COMM_ID": f"127.0.0.1:{port}",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES": ",".join(["1"] * size),
        "NEURON_PJRT_PROCESS_INDEX": str(rank),
    }


def enter_neuron_rank(rank: int, size: int, port: int) -> None:
    """Make this process rank `rank`, before its runtime starts. Raises ConfigError."""
    os.environ.update(rank_environment(rank, size, port, os.environ))
