"""What the tests of this folder do to a served cluster, and what they see of it."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.faults.paced_app import HANG_VARIABLE, STEP_VARIABLE
from tests.integration.serve_process import PROJECT_ROOT, SAME_LOOP_MODE, steady_ports
from tests.integration.told_process import ToldProcess, told_process

MODEL = "tiny"
STEP_S = 0.02
START_TIMEOUT_S = 500.0


@dataclass(frozen=True)
class ServedCluster:
    """A head, two nodes with a `slot` each, and Serve with the paced application."""

    process: ToldProcess
    folder: Path
    ports: list[int]
    """Of the proxies; the head's first."""
    app: str

    @property
    def url(self) -> str:
        """Of the head's proxy."""
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def hang_file(self) -> Path:
        """See paced_app."""
        return self.folder / "hang"

    def deploy(self, model: Mapping[str, Any], live: Mapping[str, Any], **args: Any) -> None:
        """Deploy one model with those keys and that user_config; returns before it is there."""
        application = {
            "name": self.app,
            "route_prefix": "/",
            "import_path": "tests.faults.paced_app:build",
            "args": {
                "request_timeout_s": 100,
                "health_check_period_s": 1,
                "auth": "none",
                "ingress": {"num_cpus": 0.5},
                "models": [{"id": MODEL, "max_model_len": 256, "dtype": "float32", "num_threads": 1, **model}],
                **args,
            },
            "deployments": [{"name": MODEL, "user_config": dict(live)}],
        }
        path = self.folder / "deploy.yaml"
        path.write_text(yaml.safe_dump({"applications": [application]}))
        self.process.tell(f"deploy {path}")

    def replicas(self, deployment: str = MODEL) -> list[psutil.Process]:
        """Processes of the replicas that live."""
        name = f"ray::ServeReplica:{self.app}:{deployment}"
        found = [p for p in psutil.process_iter(["cmdline"]) if name in " ".join(p.info["cmdline"] or [])]
        return sorted(found, key=lambda process: process.pid)

    def wait_for_replicas(self, count: int, gone: frozenset[int] = frozenset(), path: str = "/health") -> float:
        """Seconds until there are `count`, none with a pid of `gone`, and they answer."""

        def is_so() -> bool:
            pids = {process.pid for process in self.replicas()}
            are_there = len(pids) == count and not pids & gone
            return are_there and self.running(MODEL) == count and status_of(f"{self.url}{path}") == 200

        return seconds_until(is_so, START_TIMEOUT_S, f"{count} replicas")

    def running(self, deployment: str) -> int | None:
        """Its replicas that take requests, which their processes do not for long after they are there; None as long as
        the application changes.
        """
        told = self.process.tell(f"status {self.app}")
        return told["replicas"].get(deployment, {}).get("RUNNING") if told["app"] == "RUNNING" else None


def status_of(url: str) -> int | None:
    """Of a GET; None if nobody answers."""
    try:
        return httpx.get(url, timeout=10).status_code
    except httpx.TransportError:
        return None


def seconds_until(is_so: Callable[[], bool], limit_s: float, what: str) -> float:
    """How long it takes; fails after `limit_s`."""
    begin = time.monotonic()
    while not is_so():
        assert time.monotonic() < begin + limit_s, f"{what}: not within {limit_s:g} s"
        time.sleep(0.05)
    return time.monotonic() - begin


@contextmanager
def served_cluster(folder: Path) -> Generator[ServedCluster]:
    """The cluster, without an application."""
    ports = steady_ports(3)
    variables = {
        **SAME_LOOP_MODE,
        "PYTHONPATH": str(PROJECT_ROOT),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
        STEP_VARIABLE: str(STEP_S),
        HANG_VARIABLE: str(folder / "hang"),
    }
    with told_process("tests.faults.cluster_process", ports, folder, variables) as process:
        yield ServedCluster(process, folder, ports, f"faults-{ports[0]}")
