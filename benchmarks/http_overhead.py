"""What HTTP, Serve and the hops cost: the server's TPOT over that of the engine alone, paired and interleaved.

    python -m benchmarks.http_overhead configs/eagle3.yaml --prompts FILE [--start "make serve"]

With --start the command is run first, and the time until the first streamed token is reported.
"""

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import httpx
from tqdm import tqdm

from benchmarks.engine_client import run_alone
from benchmarks.load.chat_client import ChatSettings, RequestError, ask, tpot_of
from benchmarks.metrics import median_ratio
from benchmarks.provenance import provenance
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.engine import build_engine
from replicas.request import SamplingParams
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.k_policy import k_policy_of
from serve_app.serve_config import load_own_model

START_LIMIT_S = 300.0


@contextmanager
def server(command: str | None) -> Generator[None]:
    """Run `command` in a process group of its own, and end all of it afterwards; None: somebody else's server."""
    if command is None:
        yield
        return
    process = subprocess.Popen(shlex.split(command), start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)


def wait_for_first_token(client: httpx.Client, settings: ChatSettings) -> float:
    """Seconds until a request is answered with a first token. Raises TimeoutError after START_LIMIT_S."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < START_LIMIT_S:
        asked = time.perf_counter() - begin
        # Refused while nobody listens yet, or while the model loads.
        with suppress(RequestError):
            served = ask(client, settings, "Say hello.")
            if served.first_content is not None:
                return asked + served.first_content
        time.sleep(0.2)
    raise TimeoutError(f"no token within {START_LIMIT_S} s")


def tpot_through_http(client: httpx.Client, settings: ChatSettings, text: str) -> float:
    """Of one streamed greedy answer. Raises RequestError for one of less than two tokens, and for any other end."""
    return tpot_of(ask(client, settings, text))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--start", help="command that starts the server")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    model = load_own_model(args.config)
    prompts = read_prompts(args.prompts, args.limit)
    with server(args.start), httpx.Client(base_url=args.url, timeout=120, trust_env=False) as client:
        settings = ChatSettings(model.id, args.tokens)
        started = wait_for_first_token(client, settings)
        # With the K that the server has, or two things would be compared.
        engine = build_engine(with_local_checkpoints(model.engine_config), k_policy_of(model))
        engine.warm_up()
        sampling = SamplingParams(temperature=0, max_tokens=args.tokens)
        through_http: list[float] = []
        alone: list[float] = []
        shuffle = random.Random(0)
        ask(client, settings, prompts[0].text)
        for prompt in tqdm(prompts, unit="prompt"):
            for by_http in shuffle.sample([True, False], 2):
                if by_http:
                    through_http.append(tpot_through_http(client, settings, prompt.text))
                else:
                    alone.append(run_alone(engine, prompt, sampling).answer.tpot)
    if args.start:
        print(f"start to first streamed token: {started:.1f} s")
    print(f"TPOT through HTTP {1e3 * median(through_http):.2f} ms, engine alone {1e3 * median(alone):.2f} ms")
    print(f"median of paired ratios: {median_ratio(through_http, alone):.3f}")
    print(json.dumps(provenance()))


if __name__ == "__main__":
    main()
