"""Choose K by batch size from a sweep's rows, and write the file that serving reads.

    python -m benchmarks.write_k_schedule results/sweeps/smollm2-135m-cpu.jsonl
    python -m benchmarks.write_k_schedule results/sweeps/smollm2-135m-cpu.jsonl --vllm --max-num-seqs 256

The second prints the same schedule as vLLM's `num_speculative_tokens_per_batch_size` and writes nothing.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.choose_k import MARGIN, as_vllm, make_schedule
from benchmarks.fit.fit import Fit, fit_sweep
from benchmarks.provenance import provenance
from benchmarks.results import read_results
from replicas.errors import ConfigError
from serve_app.k_schedule import KSchedule

FOLDER = Path("configs/k_schedules")


def schedule_provenance(fit: Fit, margin: float) -> dict[str, str]:
    """Where the rows came from, and how K was chosen from them."""
    first, last = fit.sessions[0], fit.sessions[-1]
    own = provenance()
    return {
        "measured": first.began if first is last else f"{first.began} to {last.began}",
        "commits": ", ".join(dict.fromkeys(session.provenance["commit"] for session in fit.sessions)),
        "machine": last.provenance["machine"],
        "threads": last.provenance["threads"],
        "environment": last.provenance.get("environment", ""),
        "config_hash": last.config_hash,
        "sweep": last.provenance["command"],
        "chosen_by": own["command"],
        "margin": str(margin),
    }


def as_yaml(schedule: KSchedule) -> str:
    """The file's text."""
    data: dict[str, Any] = schedule.model_dump()
    buckets = "".join(f"  - {{from_batch: {bucket.from_batch}, k: {bucket.k}}}\n" for bucket in schedule.buckets)
    before = {key: data[key] for key in ("model", "engine", "device", "method")}
    rest = ("best_fixed_k", "hold_steps", "acceptance_by_position", "step_ms", "provenance")
    after = {key: data[key] for key in rest}
    return (
        "# K by the number of decoding sequences, measured: write it anew rather than change it by hand.\n"
        + yaml.safe_dump(before, sort_keys=False)
        + f"buckets:\n{buckets}"
        + yaml.safe_dump(after, sort_keys=False, default_flow_style=None, width=120)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, help=f"{FOLDER}/MODEL-DEVICE.yaml by default")
    parser.add_argument("--margin", type=float, default=MARGIN, help="of TPOT, for which K changes with the batch")
    parser.add_argument("--vllm", action="store_true", help="print vLLM's speculative-config key instead")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="end of vLLM's last range")
    args = parser.parse_args(arguments)
    try:
        fit = fit_sweep(read_results(args.results))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    schedule = make_schedule(fit, schedule_provenance(fit, args.margin), args.margin)
    if args.vllm:
        print(json.dumps({"num_speculative_tokens_per_batch_size": as_vllm(schedule, args.max_num_seqs)}))
        return 0
    path = args.out or FOLDER / f"{args.results.stem}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_yaml(schedule), encoding="utf-8")
    print(f"{path}: " + ", ".join(f"K = {bucket.k} from batch {bucket.from_batch}" for bucket in schedule.buckets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
