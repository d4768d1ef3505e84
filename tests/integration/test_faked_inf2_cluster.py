"""configs/inf2_eagle3.yaml on three raylets of this machine, its device overridden by one variable.

The checkpoints are tiny ones under the names that the file has. What it shows: placement on NeuronCores, proxies on
every node, and a node's death. What it does not: anything about NeuronCores.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.integration.serve_process import PROJECT_ROOT, SAME_LOOP_MODE, Server, running, steady_ports
from tests.integration.told_process import ToldProcess, told_process
from tests.reference.tiny_checkpoints import write_head, write_target

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CONFIG = PROJECT_ROOT / "configs" / "inf2_eagle3.yaml"
COMMIT = "0123456789" * 4
PROMPT = {"model": "llama-3.1-8b-instruct", "prompt": "hello there", "max_tokens": 24, "temperature": 0}


def in_hub_cache(cache: Path, repository: str) -> Path:
    """The folder of `repository` in the hub's cache at `cache`."""
    root = cache / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    return snapshot


@dataclass(frozen=True)
class FakedCluster:
    """The served application, and the process that holds the raylets."""

    server: Server
    process: ToldProcess
    worker_ports: list[int]

    def complete(self, port: int) -> httpx.Response:
        """A greedy completion through the proxy at `port`."""
        return httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=PROMPT, timeout=60)

    @property
    def head_port(self) -> int:
        """Of the proxy beside no replica."""
        return self.server.config["http_options"]["port"]


def wait_until(is_so: Callable[[], bool], deadline_s: float, what: str) -> None:
    deadline = time.monotonic() + deadline_s
    while not is_so():
        assert time.monotonic() < deadline, f"{what}: not within {deadline_s} s"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakedCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    [model] = config["applications"][0]["args"]["models"]
    write_target(in_hub_cache(folder / "hub", model["model"]))
    write_head(in_hub_cache(folder / "hub", model["speculative_config"]["model"]))
    ports = steady_ports(3)
    config["http_options"]["port"] = ports[0]
    variables = {
        **SAME_LOOP_MODE,
        "EYRIE_DEVICE": "cpu",
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(PROJECT_ROOT),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (
        told_process("tests.integration.faked_cluster", ports[1:], folder, variables) as process,
        running(config, folder, variables, process.address) as server,
    ):
        yield FakedCluster(server, process, ports[1:])


def test_each_replica_has_the_cores_of_a_node(cluster: FakedCluster) -> None:
    # Two replicas of two cores: none is left of the four on two nodes.
    wait_until(lambda: cluster.process.tell("free") == {"nodes": 3, "free": 0}, 120, "two replicas")


def test_every_node_answers_and_all_say_the_same(cluster: FakedCluster) -> None:
    ports = [cluster.head_port, *cluster.worker_ports]
    for port in ports:
        wait_until(lambda port=port: is_healthy(port), 60, f"the proxy at {port}")
    answers = [cluster.complete(port).json() for port in ports for _ in range(4)]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert {answer["usage"]["completion_tokens"] for answer in answers} == {24}
    assert {answer["usage"]["speculation"]["num_speculative_tokens"] for answer in answers} == {5}


def test_a_node_that_dies_takes_no_answer_with_it_for_long_and_is_replaced(cluster: FakedCluster) -> None:
    before = cluster.complete(cluster.head_port).json()["choices"][0]["text"]
    cluster.process.tell("kill")
    wait_until(lambda: cluster.process.tell("free") == {"nodes": 2, "free": 0}, 60, "one node less")
    wait_until(lambda: cluster.complete(cluster.head_port).status_code == 200, 60, "an answer without the node")
    for _ in range(8):
        wait_until(lambda: cluster.complete(cluster.head_port).status_code == 200, 30, "an answer")
    [port] = steady_ports(1)
    cluster.process.tell(f"add {port}")
    wait_until(lambda: cluster.process.tell("free") == {"nodes": 3, "free": 0}, 180, "a replica on the new node")
    wait_until(lambda: is_healthy(port), 120, "the new node's proxy")
    assert cluster.complete(port).json()["choices"][0]["text"] == before


def is_healthy(port: int) -> bool:
    """Does the application answer at `port`, with every model?"""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
