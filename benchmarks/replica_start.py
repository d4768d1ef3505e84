"""How long a new replica takes, from the decision to start one to its being ready, with the model in the cache.

    python -m benchmarks.replica_start configs/eagle3.yaml

The only replica is killed, and Serve starts the next one: from its state STARTING to RUNNING, which is built,
warm and healthy. The parts are of a process of its own: imports, engine, warm-up.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve

from benchmarks.provenance import provenance
from serve_app.app import build_application
from serve_app.serve_config import load_own_model
from serve_app.settings import AnyModelSettings, AppSettings

APPLICATION = "start"


def application(model: AnyModelSettings) -> Any:
    """The application of `model` with one replica."""
    data = model.model_dump(mode="json", exclude_unset=True)
    data |= {"autoscaling": {"min_replicas": 1, "max_replicas": 1}, "resources": {"num_cpus": 0.1}}
    return build_application(AppSettings.model_validate({"models": [data], "ingress": {"num_cpus": 0.1}}))


def kill_replica(deployment: str) -> None:
    """End the process of the replica, which is of this process's own cluster."""
    name = f"ray::ServeReplica:{APPLICATION}:{deployment}"
    for process in psutil.Process().children(recursive=True):
        if name in " ".join(process.cmdline()):
            process.kill()


def seconds_of_start(deployment: str) -> float:
    """Seconds in which the next replica starts."""
    begin: float | None = None
    while True:
        # Keyed by the states' names, whatever Serve's type says.
        states: Any = serve.status().applications[APPLICATION].deployments[deployment].replica_states
        if begin is None and int(states.get("STARTING", 0)) == 1:
            begin = time.perf_counter()
        if begin is not None and int(states.get("RUNNING", 0)) == 1:
            return time.perf_counter() - begin
        time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--starts", type=int, default=3, help="so many (3)")
    options = parser.parse_args(arguments)
    model = load_own_model(options.config)
    command = [sys.executable, "-m", "benchmarks.start_parts", str(options.config)]
    parts = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        serve.run(application(model), name=APPLICATION, route_prefix=None)
        seconds: list[float] = []
        for _ in range(options.starts):
            kill_replica(model.deployment_name)
            seconds.append(round(seconds_of_start(model.deployment_name), 2))
    finally:
        serve.shutdown()
        ray.shutdown()
    print(json.dumps({"new_replica_s": seconds, **parts, "provenance": provenance()}))


if __name__ == "__main__":
    main()
