"""Which of Serve's modes carries a stream at the least cost: a start of the server a mode, the engine alone beside it.

    python -m benchmarks.serve_modes configs/eagle3.yaml --modes grpc_same_loop default --batches 1 8

For each mode and batch size: the time per output token (TPOT) through HTTP over that of the engine alone, in turns and
by pairs; and the CPU milliseconds of a streamed chunk that proxy, ingress and replica take beside the engine's threads.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import yaml

from benchmarks.engine_client import run_together
from benchmarks.load.chat_client import ChatSettings, tpot_of
from benchmarks.metrics import median_ratio
from benchmarks.provenance import provenance
from benchmarks.results import Served
from benchmarks.timed_stream import timed_stream
from benchmarks.workloads import OWN_PROMPTS, Prompt, read_prompts
from replicas.engine import Engine, build_engine
from replicas.request import SamplingParams
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.k_policy import k_policy_of
from serve_app.serve_config import load_own_model

START_LIMIT_S = 150.0
HOPS = ("ray::ProxyActor", "ray::HAProxy", "haproxy ", "ray::ServeReplica")
"""Of the titles of processes that a chunk passes."""
GRPC = {"RAY_SERVE_USE_GRPC_BY_DEFAULT": "1"}
SAME_LOOP = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0", "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0"}
HAPROXY = {"RAY_SERVE_ENABLE_HA_PROXY": "1"}
LESS_LOG = {"RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000"}
MODES: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "grpc": GRPC,
    "same_loop": SAME_LOOP,
    "grpc_same_loop": GRPC | SAME_LOOP,
    "grpc_same_loop_less_log": GRPC | SAME_LOOP | LESS_LOG,
    "haproxy": HAPROXY,
    "haproxy_grpc_same_loop": HAPROXY | GRPC | SAME_LOOP,
}
"""What each sets beside Serve's defaults, whatever this process has."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a process group of its own."""

    process: subprocess.Popen[bytes]
    url: httpx.URL

    def cpu_seconds(self, engine_threads: int) -> float:
        """CPU of proxies, ingress and replicas so far, without the `engine_threads` busiest threads of each replica."""
        total = 0.0
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                total += _cpu_seconds(process, engine_threads)
        return total


def _cpu_seconds(process: psutil.Process, engine_threads: int) -> float:
    title = " ".join(process.cmdline())
    is_model = "ray::ServeReplica" in title and ":Ingress" not in title
    if not any(part in title for part in HOPS):
        return 0.0
    threads = sorted(thread.user_time + thread.system_time for thread in process.threads())
    return sum(threads[: len(threads) - engine_threads] if is_model else threads)


@contextmanager
def served(config: Path, port: int, mode: Mapping[str, str], address: str = "local") -> Generator[Server]:
    """`serve run` of `config` with the variables of `mode`; it has answered /health.

    In a Ray of its own, or in the one at `address`, whose processes have their variables from whoever started it.
    """
    data: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))
    data["http_options"]["port"] = port
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_SERVE_")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ray.serve.scripts", "run", "--address", address, str(path)],
                env=environment | {"RAY_USAGE_STATS_ENABLED": "0", **mode},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        url = httpx.URL(f"http://127.0.0.1:{port}")
        try:
            _wait_until_healthy(url, process, Path(folder) / "log")
            yield Server(process, url)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            _wait_until_gone(url)


def _wait_until_healthy(url: httpx.URL, process: subprocess.Popen[bytes], log: Path) -> None:
    begin = time.monotonic()
    while time.monotonic() < begin + START_LIMIT_S:
        if process.poll() is not None:
            break
        try:
            if httpx.get(url.join("/health"), timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"no server within {START_LIMIT_S:g} s:\n{log.read_text(errors='replace')[-4000:]}")


def _wait_until_gone(url: httpx.URL) -> None:
    """The proxy outlives the command for a moment."""
    with suppress(httpx.TransportError):
        while True:
            httpx.get(url.join("/-/healthz"), timeout=5, trust_env=False)
            time.sleep(0.2)


async def ask_together(url: httpx.URL, model: str, prompts: Sequence[Prompt], tokens: int) -> list[Served]:
    """Greedy answers of `tokens` tokens to all `prompts`, streamed at once."""
    settings = ChatSettings(model, tokens, ignore_eos=True)
    return list(await asyncio.gather(*(timed_stream(url, settings, prompt.text) for prompt in prompts)))


def engine_tpots(engine: Engine, prompts: Sequence[Prompt], tokens: int) -> list[float]:
    """Seconds a token of the engine's answers to all `prompts` at once."""
    assert engine.codec is not None
    token_ids = [engine.codec.encode_chat(prompt.messages) for prompt in prompts]
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return [one.answer.tpot for one in run_together(engine, token_ids, sampling, len(prompts)).answers]


def measure(
    server: Server, engine: Engine, model: str, prompts: Sequence[Prompt], batch: int, tokens: int, rounds: int
) -> dict[str, float]:
    """Figures of one mode at one batch size."""
    through_http: list[float] = []
    alone: list[float] = []
    cpu, chunks = 0.0, 0
    asyncio.run(ask_together(server.url, model, prompts[:batch], 16))
    for number in range(rounds):
        batch_prompts = [prompts[(number * batch + i) % len(prompts)] for i in range(batch)]
        alone += engine_tpots(engine, batch_prompts, tokens)
        before = server.cpu_seconds(engine.config.num_threads or os.cpu_count() or 1)
        answers = asyncio.run(ask_together(server.url, model, batch_prompts, tokens))
        cpu += server.cpu_seconds(engine.config.num_threads or os.cpu_count() or 1) - before
        chunks += sum(len(answer.content_chunks) for answer in answers)
        through_http += [tpot_of(answer) for answer in answers]
    return {
        "batch": batch,
        "tpot_ratio": round(median_ratio(through_http, alone), 3),
        "http_tpot_ms": round(1e3 * median(through_http), 2),
        "engine_tpot_ms": round(1e3 * median(alone), 2),
        "cpu_ms_a_chunk": round(1e3 * cpu / chunks, 3),
        "chunks": chunks,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of JSON a mode and batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES), help="(all)")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="(1 8)")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--tokens", type=int, default=96, help="of an answer (96)")
    parser.add_argument("--rounds", type=int, default=3, help="answers, or batches of them, that each figure is of (3)")
    parser.add_argument("--port", type=int, default=8000, help="of the server (8000)")
    options = parser.parse_args(arguments)
    model = load_own_model(options.config)
    prompts = read_prompts(options.prompts, None)
    engine = build_engine(with_local_checkpoints(model.engine_config), k_policy_of(model))
    engine.warm_up()
    for mode in options.modes:
        with served(options.config, options.port, MODES[mode]) as server:
            for batch in options.batches:
                rounds = options.rounds if batch > 1 else 4 * options.rounds
                found = measure(server, engine, model.id, prompts, batch, options.tokens, rounds)
                print(json.dumps({"mode": mode} | found), flush=True)
    print(json.dumps(provenance()))


if __name__ == "__main__":
    main()
