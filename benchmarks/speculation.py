"""Does speculation pay? Every K against K=0, paired and interleaved at batch 1. Other engines: benchmarks.peers.

python -m benchmarks.speculation configs/eagle3.yaml --k 0 2 3 4 --prompts FILE --tokens 128
"""

import argparse
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tqdm import tqdm

from benchmarks.engine_client import ChosenPolicy, EngineAnswer, engine_for_measuring, run_alone
from benchmarks.metrics import acceptance_by_position, median_ratio, pooled
from benchmarks.provenance import provenance
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.config import EngineConfig
from replicas.engine import build_engine
from replicas.request import Acceptance, SamplingParams
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.k_policy import FixedK
from serve_app.serve_config import load_own_model


@dataclass(slots=True)
class Mode:
    """All answers at one K, in the order of the prompts."""

    k: int
    answers: list[EngineAnswer] = field(default_factory=list[EngineAnswer])

    @property
    def acceptance(self) -> Acceptance:
        """Over all prompts."""
        return pooled(answer.acceptance for answer in self.answers)


def measure(
    config: EngineConfig,
    ks: list[int],
    prompts_file: Path,
    limit: int | None,
    tokens: int,
    temperature: float,
) -> list[Mode]:
    """Answer every prompt at every K, in a fresh random order for each prompt."""
    policy = ChosenPolicy(FixedK(0))
    engine = build_engine(engine_for_measuring(config, max(ks)), policy)
    engine.warm_up()
    prompts = read_prompts(prompts_file, limit)
    modes = {k: Mode(k) for k in ks}
    sampling = SamplingParams(temperature=temperature, seed=0, max_tokens=tokens)
    run_alone(engine, prompts[0], sampling)
    shuffle = random.Random(0)
    for prompt in tqdm(prompts, unit="prompt"):
        for k in shuffle.sample(ks, len(ks)):
            policy.current = FixedK(k)
            modes[k].answers.append(run_alone(engine, prompt, sampling))
    return list(modes.values())


def report(modes: list[Mode]) -> str:
    """A Markdown table: medians, and medians of paired ratios against K=0."""
    base = next(mode for mode in modes if mode.k == 0)
    base_tpot = [a.answer.tpot for a in base.answers]
    base_end = [a.answer.seconds_per_token for a in base.answers]
    lines = [
        "| mode | TPOT ms | TPOT speed-up | end-to-end speed-up | mean acceptance length | by position | matched |",
        "|---|---|---|---|---|---|---|",
    ]
    for mode in modes:
        tpot = [a.answer.tpot for a in mode.answers]
        end = [a.answer.seconds_per_token for a in mode.answers]
        same = sum(a.token_ids == b.token_ids for a, b in zip(mode.answers, base.answers, strict=True))
        positions = " ".join(f"{share:.2f}" for share in acceptance_by_position(mode.acceptance, mode.k))
        lines.append(
            f"| K={mode.k} | {1e3 * median(tpot):.1f} | {median_ratio(base_tpot, tpot):.2f} "
            f"| {median_ratio(base_end, end):.2f} | {mode.acceptance.mean_acceptance_length:.2f} | {positions} "
            f"| {same}/{len(end)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", help="id of the model in the config; its first one by default")
    parser.add_argument("--k", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--limit", type=int, help="number of prompts")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    model = load_own_model(args.config, args.model)
    config, ks = with_local_checkpoints(model.engine_config), sorted({0, *args.k})
    print(report(measure(config, ks, args.prompts, args.limit, args.tokens, args.temperature)))
    print(json.dumps(provenance()))


if __name__ == "__main__":
    main()
