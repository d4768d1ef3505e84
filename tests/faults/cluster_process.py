"""A cluster of several raylets on this machine with Serve on it, in a process of its own that takes commands as lines.

`deploy PATH` takes the Serve YAML at PATH; `kill PORT` ends the node whose proxy listens there, `add PORT` starts one;
`status APP` answers with what Serve's controller knows of the application.
The head has no `slot`, which each other node has one of; the others have no CPUs: what asks for some is on the
head.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

HEAD_CPUS = 4


def main(ports: list[int]) -> None:
    """The head's proxy listens at the first of `ports`, the nodes' at the others."""
    # Ray prints what it likes to standard output: answers alone go where the parent reads.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cluster = Cluster()
    cluster.add_node(num_cpus=HEAD_CPUS, include_dashboard=False)
    nodes = {port: _add(cluster, port) for port in ports[1:]}
    ray.init(address=cluster.address, log_to_driver=False)
    serve.start(
        proxy_location="EveryNode", http_options={"host": "127.0.0.1", "port": ports[0], "request_timeout_s": 120}
    )
    print(json.dumps({"address": cluster.address}), file=answers, flush=True)
    for line in sys.stdin:
        command, argument = line.split()
        answer: dict[str, Any] = {"done": command}
        if command == "deploy":
            config = yaml.safe_load(Path(argument).read_text(encoding="utf-8"))
            client = _get_global_client()
            assert client is not None
            client.deploy_apps(ServeDeploySchema.model_validate(config), _blocking=False)
        elif command == "kill":
            _kill(cluster, nodes.pop(int(argument)))
        elif command == "add":
            nodes[int(argument)] = _add(cluster, int(argument))
        elif command == "status":
            answer |= _status(argument)
        print(json.dumps(answer), file=answers, flush=True)
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


def _kill(cluster: Cluster, node: Any) -> None:
    """As when a machine goes: the raylet and all that it started, at once."""
    [raylet] = node.all_processes["raylet"]
    processes = psutil.Process(raylet.process.pid).children(recursive=True)
    for process in [psutil.Process(raylet.process.pid), *processes]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    cluster.remove_node(node, allow_graceful=False)


def _status(name: str) -> dict[str, Any]:
    """The application's state, and how many replicas of each deployment are in which."""
    app = serve.status().applications.get(name)
    if app is None:
        return {"app": None, "replicas": {}}
    return {"app": app.status, "replicas": {name: one.replica_states for name, one in app.deployments.items()}}


def _add(cluster: Cluster, port: int) -> object:
    variables = {"RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(port)}
    return cluster.add_node(num_cpus=0, resources={"slot": 1}, env_vars=variables)


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1:]])
