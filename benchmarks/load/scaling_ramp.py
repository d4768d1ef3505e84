"""Serve a deployment on this machine, put a ramp on it, and watch its replicas come and go.

    python -m benchmarks.load.scaling_ramp configs/scaling.yaml

The load is benchmarks/load/ramp_shape.py's. Rows go where locust's go: requests, and a row at each change of users or
running replicas. Let --quiet-s be longer than the deployment's downscale_delay_s, or no replica goes before the end.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray import serve

from benchmarks.load.ramp import Ramp
from benchmarks.load.stages import fleet_rows, stage_tables
from benchmarks.results import Results, append_rows, read_results
from benchmarks.serve_modes import MODES, served
from replicas.errors import ConfigError
from serve_app.serve_config import load_settings

LOAD = Path(__file__).parent
RESULTS = Path("results/load")
SERVE_ENV = {
    **MODES["grpc_same_loop"],
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}
"""As `make serve` has it."""
LOOK_S = 0.25
FAILURES_ONLY = 1
"""Locust's status where requests failed, as a 429 does."""


@dataclass(slots=True)
class Watch:
    """The running replicas of a deployment, by time."""

    deployment: str
    seen: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(Seconds since the epoch, running replicas), at each change."""

    def look(self) -> None:
        """Ask Serve."""
        # Keyed by the states' names, whatever Serve's type says.
        status: Any = serve.status()
        deployments = [one.deployments for one in status.applications.values()]
        [states] = [one[self.deployment].replica_states for one in deployments if self.deployment in one]
        running = int(states.get("RUNNING", 0))
        if not self.seen or self.seen[-1][1] != running:
            self.seen.append((time.time(), running))

    @contextmanager
    def going_on(self) -> Generator[None]:
        """Looks for as long as the block takes."""
        over = threading.Event()

        def looking() -> None:
            while not over.wait(LOOK_S):
                self.look()

        self.look()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(looking)
            try:
                yield
            finally:
                over.set()
        # A look that failed is told here: what was seen after it would be missing.
        found.result()


def locust_command(ramp: Ramp, url: str, model: str, out: Path, args: argparse.Namespace) -> list[str]:
    """The ramp as locust is told it."""
    files = f"{LOAD / 'locustfile.py'},{LOAD / 'ramp_shape.py'}"
    options = {
        "--host": url,
        "--model": model,
        "--out": str(out),
        "--max-tokens": str(args.max_tokens),
        "--stop-timeout": "120",
        "--peak-users": str(ramp.peak),
        "--ramp-steps": str(ramp.steps),
        "--step-s": str(ramp.step_s),
        "--hold-s": str(ramp.hold_s),
        "--quiet-s": str(ramp.quiet_s),
    }
    flat = [part for pair in options.items() for part in pair]
    return [sys.executable, "-m", "locust", "-f", files, "--headless", "--only-summary", "--ignore-eos", *flat]


def play(config: Path, ramp: Ramp, args: argparse.Namespace) -> Results:
    """Serve, load, watch; returns the rows of this load, which are in the file too. Raises ConfigError."""
    model = load_settings(config).models[0]
    out: Path = args.out or RESULTS / f"{model.id.replace('/', '--')}-ramp.jsonl"
    before = {session.id for session in read_results(out).sessions}
    # Serve's processes have them from Ray's, and those from this one.
    os.environ.update(SERVE_ENV)
    cluster: Any = ray.init(include_dashboard=False, log_to_driver=False)
    try:
        with served(config, args.port, SERVE_ENV, cluster.address_info["gcs_address"]) as server:
            watch = Watch(model.deployment_name)
            with watch.going_on():
                status = subprocess.run(locust_command(ramp, str(server.url), model.id, out, args), check=False)
    finally:
        ray.shutdown()
    after = read_results(out)
    new = [session for session in after.sessions if session.id not in before]
    if status.returncode not in (0, FAILURES_ONLY) or len(new) != 1:
        raise ConfigError(f"the load ended with status {status.returncode}; see above")
    began = datetime.fromisoformat(new[0].began).timestamp()
    fleets = fleet_rows(new[0].id, ramp, [(moment - began, running) for moment, running in watch.seen])
    append_rows(out, fleets)
    print(f"rows: {out}")
    own = tuple(row for row in after.requests if row.session == new[0].id)
    return Results(tuple(new), requests=own, fleets=tuple(fleets))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table by stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="a Serve YAML; its first model is asked")
    parser.add_argument("--peak-users", type=int, default=12, help="users at the top (12)")
    parser.add_argument("--ramp-steps", type=int, default=2, help="from one user to the top (2)")
    parser.add_argument("--step-s", type=float, default=20.0, help="seconds between two steps (20)")
    parser.add_argument("--hold-s", type=float, default=60.0, help="seconds at the top (60)")
    parser.add_argument("--quiet-s", type=float, default=60.0, help="seconds with one user, before and after (60)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (64)")
    parser.add_argument("--port", type=int, default=8000, help="of the server (8000)")
    parser.add_argument("--out", type=Path, help=f"file of rows; {RESULTS}/MODEL-ramp.jsonl by default")
    args = parser.parse_args(arguments)
    ramp = Ramp(args.peak_users, args.ramp_steps, args.step_s, args.hold_s, args.quiet_s)
    try:
        results = play(args.config, ramp, args)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(*stage_tables(results), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
