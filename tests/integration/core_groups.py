"""Replicas that own groups of faked NeuronCores, on raylets of this machine: what each of them sees, as JSON.

python -m tests.integration.core_groups RAYLETS CORES_A_RAYLET GROUP REPLICAS MODEL_FOLDER
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve import RunTarget
from ray.util import get_current_placement_group

from replicas.config import EngineBase
from replicas.scheduling.k_policy import KPolicy
from serve_app.app import build_application
from serve_app.engine_protocol import AsyncEngine, build_served_engine
from serve_app.settings import AppSettings, ModelSettings

VARIABLE = "NEURON_RT_VISIBLE_CORES"
SEEN_BY_A_RANK = f"import os; print(os.environ[{VARIABLE!r}])"
LIMIT_S = 150


@ray.remote(num_cpus=0)
class Notes:
    """What the replicas saw when their engines were built."""

    def __init__(self) -> None:
        self._notes: list[dict[str, Any]] = []

    def add(self, note: dict[str, Any]) -> None:
        self._notes.append(note)

    def all(self) -> list[dict[str, Any]]:
        return self._notes


def build_and_note(config: EngineBase, k_policy: KPolicy) -> AsyncEngine:
    """The engine, after a note of what its process, and a process that it starts, have been given."""
    # Before the engine is built, which is when a runtime would take its cores.
    group = get_current_placement_group()
    rank = subprocess.run([sys.executable, "-c", SEEN_BY_A_RANK], capture_output=True, text=True, check=True)
    note = {
        "cores": os.environ[VARIABLE],
        "rank_cores": rank.stdout.strip(),
        "node": ray.get_runtime_context().get_node_id(),
        "bundles": None if group is None else group.bundle_specs,
    }
    ray.get(ray.get_actor("notes", namespace="notes").add.remote(note))
    return build_served_engine(config, k_policy)


def main(raylets: int, cores: int, group: int, replicas: int, folder: str) -> None:
    written = {
        "id": "model",
        "model": folder,
        "device": "neuron",
        "dtype": "bfloat16",
        "tensor_parallel_size": group,
        "max_model_len": 128,
        "autoscaling": {"min_replicas": replicas, "max_replicas": replicas},
        "resources": {"num_cpus": 0.5},
    }
    # As EYRIE_DEVICE=cpu does it: the engine runs on the CPU, what the replica reserves stays.
    data = ModelSettings.model_validate(written).data_on_device("cpu") | {"dtype": "float32", "num_threads": 1}
    settings = AppSettings.model_validate({"models": [data], "ingress": {"num_cpus": 0.1}})
    cluster = Cluster()
    cluster.add_node(num_cpus=2, include_dashboard=False)
    for _ in range(raylets):
        cluster.add_node(num_cpus=4, resources={"neuron_cores": cores})
    ray.init(address=cluster.address, namespace="notes", log_to_driver=False)
    notes: Any = Notes.options(name="notes", lifetime="detached").remote()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        target = RunTarget(build_application(settings, build_and_note), name="cores", route_prefix=None)
        serve.run_many([target], wait_for_applications_running=False)
        possible = min(replicas, raylets * (cores // group))
        deadline = time.monotonic() + LIMIT_S
        status: Any = None
        while time.monotonic() < deadline:
            status = serve.status().applications["cores"].deployments.get("model")
            running = int(status.replica_states.get("RUNNING", 0)) if status else 0
            # A slow start is told of in the same words, but of those that initialize.
            said = replicas == possible or "to be scheduled" in status.message if status else False
            if running >= possible and said:
                break
            time.sleep(0.5)
        print(
            json.dumps(
                {
                    "replicas": ray.get(notes.all.remote()),
                    "states": {str(getattr(k, "value", k)): v for k, v in status.replica_states.items()},
                    "status": str(getattr(status.status, "value", status.status)),
                    "message": status.message,
                }
            )
        )
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), sys.argv[5])  # pyright: ignore[reportCallIssue]
