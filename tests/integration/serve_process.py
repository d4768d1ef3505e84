"""A real server: `serve run` of configs/eagle3.yaml in a cluster of its own, on a free port."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import yaml

PROJECT_ROOT = Path(__file__).resolve().parents[2]
CONFIG = PROJECT_ROOT / "configs" / "eagle3.yaml"
START_TIMEOUT_S = 240
"""A loaded machine with two cores; on a quiet one 20 s."""

SAME_LOOP_MODE = {
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
"""As `make serve` runs it: one event loop a process, gRPC between them."""


@dataclass(frozen=True)
class Server:
    """A running application."""

    url: str
    config: dict[str, Any]
    log: Path

    @property
    def client(self) -> openai.OpenAI:
        """Without retries: a test wants to see the first answer."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    @property
    def http(self) -> httpx.Client:
        """For what the openai client does not send."""
        return httpx.Client(base_url=self.url, timeout=120)


def demo_config(port: int) -> dict[str, Any]:
    """configs/eagle3.yaml with another port and one K."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["http_options"]["port"] = port
    # What a test asks of K holds for every batch size.
    del config["applications"][0]["args"]["models"][0]["k_schedule"]
    return config


@contextmanager
def running(
    config: dict[str, Any],
    folder: Path,
    variables: Mapping[str, str],
    address: str = "local",
    start_timeout_s: float = START_TIMEOUT_S,
) -> Generator[Server]:
    """`serve run` of `config` until the block ends; raises with the log if it does not come up.

    In a cluster of its own, or in the one at `address`.
    """
    path, log_path = folder / "config.yaml", folder / "serve.log"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"} | dict(variables)
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "ray.serve.scripts", "run", "--address", address, str(path)]
    url = f"http://127.0.0.1:{config['http_options']['port']}"
    with log_path.open("w") as log:
        process = subprocess.Popen(command, cwd=PROJECT_ROOT, env=environment, stdout=log, stderr=log)
        try:
            _wait_until_healthy(url, process, log_path, start_timeout_s)
            yield Server(url, config, log_path)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log_path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        log = log_path.read_text(encoding="utf-8", errors="replace")
        if process.poll() is not None or "DEPLOY_FAILED" in log:
            raise AssertionError(f"serve run has failed:\n{log[-6000:]}")
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    raise AssertionError(f"not healthy after {timeout_s} s:\n{log_path.read_text(errors='replace')[-6000:]}")


def steady_ports(count: int) -> list[int]:
    """Ports that are free and stay so: below those that the kernel gives to connections, above Ray's workers'."""
    found: list[int] = []
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            found.append(port)
    return found[:count]
