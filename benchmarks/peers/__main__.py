"""Our engine and others on the same prompts, next to each other; `make bench` makes the README's table of it.

    python -m benchmarks.peers configs/eagle3.yaml --peers llama.cpp-f16,vllm

Each peer is a process in an environment of its own, made when it is first needed (`.venv-peers`, `.venv-vllm`). All
load at once and answer one at a time, in random order for each prompt. Rows go to results/peers/MODEL.jsonl.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

from benchmarks.peers.contestants import PEERS, Entry, contestants
from benchmarks.peers.environments import ENVIRONMENTS, named_interpreters
from benchmarks.peers.race import RacePrompt, Workers, race, race_hash
from benchmarks.peers.table import publish, race_report
from benchmarks.provenance import provenance
from benchmarks.results import Session, append_row, read_results
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.errors import ConfigError, EyrieError
from replicas.models.source import resolve_model
from replicas.text_codec import TextCodec
from serve_app.checkpoint_paths import PROJECT_ROOT, with_local_checkpoints
from serve_app.serve_config import load_own_model
from serve_app.settings import ModelSettings

RESULTS = Path("results/peers")
PYTHONS = "EYRIE_PEER_PYTHONS"
INTERRUPTED = 130


def encoded(model: ModelSettings, path: Path, limit: int | None) -> list[RacePrompt]:
    """The prompts of `path` as chats, by the tokenizer of `model`."""
    codec = TextCodec(resolve_model(with_local_checkpoints(model.engine_config).model))
    prompts = read_prompts(path, limit)
    if not prompts:
        raise ConfigError(f"--prompts: {path} holds no prompt")
    return [RacePrompt(one.category, tuple(codec.encode_chat(one.messages))) for one in prompts]


def run(args: argparse.Namespace, model: ModelSettings, out: Path) -> None:
    """Race, and write the rows to `out` as they come. Raises EyrieError, in one sentence."""
    names = [name for name in args.peers.split(",") if name]
    taking_part = contestants(Entry(args.config, model, args.k, names, args.assistant))
    named = named_interpreters(args.python)
    prompts = encoded(model, args.prompts, args.limit)
    with ExitStack() as stack:
        workers = Workers(taking_part, named, stack)
        told = {"tokens": args.tokens, "environments": list(workers.versions)}
        source = {**provenance(), **workers.versions, "race": json.dumps(told)}
        method = model.speculative_config.method if model.speculative_config else None
        session = Session(
            uuid4().hex[:8],
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            race_hash(taking_part, prompts, args.tokens),
            model.id,
            model.device,
            method,
            source,
            "race",
        )
        if not args.keep:
            out.unlink(missing_ok=True)
        append_row(out, session)
        for row in race(workers, taking_part, prompts, args.tokens, session.id):
            append_row(out, row)


def peers(args: argparse.Namespace) -> str:
    """Race unless told otherwise; the report. Raises EyrieError."""
    model = load_own_model(args.config, args.model)
    out = args.out or RESULTS / f"{model.id.replace('/', '--')}.jsonl"
    if not args.render:
        run(args, model, out)
    results = read_results(out)
    report = race_report(results)
    if args.publish:
        publish(out, results)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", default=PROJECT_ROOT / "configs/eagle3.yaml")
    parser.add_argument("--model", help="id of the model in the config; its first one by default")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}; all by default")
    parser.add_argument("--k", type=int, nargs="*", default=[0, 1, 2, 3], help="our engine with fixed K, too (0 1 2 3)")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS, help="JSON lines with `turns`")
    parser.add_argument("--limit", type=int, default=20, help="prompts (20)")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most (64)")
    parser.add_argument("--assistant", help="folder of a small model for transformers' assisted generation")
    parser.add_argument(
        "--python",
        nargs="+",
        default=os.environ.get(PYTHONS, "").split(),
        metavar="NAME=PATH",
        help=f"Pythons that have the peers {', '.join(ENVIRONMENTS)}, so that none is made; or the variable {PYTHONS}",
    )
    parser.add_argument("--out", type=Path, help=f"file of rows; {RESULTS}/MODEL.jsonl by default")
    parser.add_argument("--keep", action="store_true", help="add to the rows of --out; pairs are within one run")
    parser.add_argument("--render", action="store_true", help="measure nothing: the table of the rows of --out")
    parser.add_argument("--publish", action="store_true", help="write the table into README.md, rows to docs/measured")
    args = parser.parse_args(arguments)
    try:
        print(peers(args))
    except EyrieError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
