"""Raylets of several machines on this one, in a process of their own that takes commands as lines.

`free` prints the neuron_cores that are left on each node, `kill` ends a node, `add PORT` starts one.
"""

import json
import os
import sys

import ray
from ray._private.state import available_resources_per_node
from ray.cluster_utils import Cluster

CORES = 2


def main(ports: list[int]) -> None:
    """One head without cores, and a node with two for each of `ports`, where its proxy listens."""
    # Ray prints what it likes to standard output: answers alone go where the parent reads.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cluster = Cluster()
    cluster.add_node(num_cpus=0, include_dashboard=False)
    nodes = [add(cluster, port) for port in ports]
    ray.init(address=cluster.address, log_to_driver=False)
    print(json.dumps({"address": cluster.address}), file=answers, flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "kill":
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
        elif command == "add":
            nodes.append(add(cluster, int(arguments[0])))
        left = [node.get("neuron_cores", 0) for node in available_resources_per_node().values()]
        print(json.dumps({"nodes": len(left), "free": sum(left)}), file=answers, flush=True)
    ray.shutdown()
    cluster.shutdown()


def add(cluster: Cluster, port: int) -> object:
    """A node as configs/cluster/ray_up_inf2.yaml starts them."""
    variables = {"RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(port)}
    return cluster.add_node(num_cpus=8, resources={"neuron_cores": CORES}, env_vars=variables)


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1:]])
