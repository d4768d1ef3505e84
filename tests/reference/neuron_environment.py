"""An inf2 that nobody has: what `probe` would find there."""

import json
from typing import Any

from replicas.devices.environment import CompileCache, Environment, parse_devices


def neuron_ls(chips: int = 1, **processes: list[dict[str, Any]]) -> str:
    """The output of `neuron-ls --json-output` (Neuron 2.33); `chip0=[{...}]` puts processes on a chip."""
    devices = [
        {
            "neuron_device": index,
            "bdf": f"00:{0x1E + index:02x}.0",
            "cpu_affinity": "0-3",
            "numa_node": "-1",
            "connected_to": None,
            "nc_count": 2,
            "memory_size": 34359738368,
            "neuroncore_ids": [2 * index, 2 * index + 1],
            "neuron_processes": processes.get(f"chip{index}", []),
        }
        for index in range(chips)
    ]
    return json.dumps(devices, indent=4)


def inf2(**changes: Any) -> Environment:
    """An inf2.xlarge on which everything is right."""
    devices, problem = parse_devices(neuron_ls())
    fields: dict[str, Any] = {
        "python": (3, 11),
        "packages": {
            "torch": "2.9.0",
            "torch-xla": "2.9.0",
            "torch-neuronx": "2.9.0.2.15.32035",
            "neuronx-cc": "2.28.7631.0",
            "libneuronxla": "2.2.16974.0",
        },
        "variables": {"NEURON_COMPILE_CACHE_URL": "s3://bucket/eyrie", "GOMP_SPINCOUNT": "40000"},
        "architecture": "x86_64",
        "cpu_flags": frozenset({"avx2", "fma"}),
        "usable_cpus": 4,
        "available_memory": 12 * 2**30,
        "quantized_engines": frozenset({"fbgemm", "none"}),
        "product": "inf2.xlarge",
        "devices": devices,
        "tool_problem": problem,
        "cache": CompileCache("s3://bucket/eyrie"),
        "own_pid": 4711,
    }
    return Environment(**(fields | changes))
