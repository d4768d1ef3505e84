"""What `deterministic: true` costs: TPOT and TTFT with it over without it, paired and interleaved.

python -m benchmarks.determinism configs/eagle3.yaml --batch 1 8 --k 0 3
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

from tqdm import tqdm

from benchmarks.engine_client import ChosenPolicy, engine_for_measuring, run_together
from benchmarks.metrics import median_ratio
from benchmarks.provenance import provenance
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.config import EngineConfig
from replicas.engine import build_engine
from replicas.request import SamplingParams
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.k_policy import FixedK
from serve_app.serve_config import load_own_model


class Comparison:
    """Median TPOT and TTFT of every round, by (batch, K) and mode."""

    def __init__(self, config: EngineConfig, prompts_file: Path) -> None:
        self.policy = ChosenPolicy(FixedK(0))
        self.engines = {
            deterministic: build_engine(config.model_copy(update={"deterministic": deterministic}), self.policy)
            for deterministic in (False, True)
        }
        codec = self.engines[True].codec
        assert codec is not None
        self.prompts = [codec.encode_chat(prompt.messages) for prompt in read_prompts(prompts_file, None)]
        self.tpot: dict[tuple[int, int], dict[bool, list[float]]] = defaultdict(lambda: {False: [], True: []})
        self.ttft: dict[tuple[int, int], dict[bool, list[float]]] = defaultdict(lambda: {False: [], True: []})

    def run(self, batches: Sequence[int], ks: Sequence[int], tokens: int, rounds: int) -> None:
        """Every batch and K once a round, the two modes next to each other in random order."""
        shuffle = random.Random(0)
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for engine in self.engines.values():
            engine.warm_up()
        for _ in tqdm(range(rounds), unit="round"):
            for batch, k in product(batches, ks):
                self.policy.current = FixedK(k)
                chosen = shuffle.sample(self.prompts, batch)
                for deterministic in shuffle.sample((False, True), 2):
                    trace = run_together(self.engines[deterministic], chosen, sampling, batch)
                    answers = [one.answer for one in trace.answers]
                    self.tpot[batch, k][deterministic].append(median(answer.tpot for answer in answers))
                    self.ttft[batch, k][deterministic].append(median(answer.first_token for answer in answers))

    def report(self) -> str:
        """A Markdown table."""
        lines = ["| batch | K | TPOT ms | deterministic | ratio | ratio of TTFT |", "|---|---|---|---|---|---|"]
        for (batch, k), modes in self.tpot.items():
            default, deterministic = (1e3 * median(modes[mode]) for mode in (False, True))
            ratio, of_first = (
                median_ratio(times[batch, k][True], times[batch, k][False]) for times in (self.tpot, self.ttft)
            )
            lines.append(f"| {batch} | {k} | {default:.1f} | {deterministic:.1f} | {ratio:.2f} | {of_first:.2f} |")
        return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", help="id of the model in the config; its first one by default")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="at most the number of prompts")
    parser.add_argument("--k", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    model = load_own_model(args.config, args.model)
    config = engine_for_measuring(with_local_checkpoints(model.engine_config), max(args.k), max(args.batch))
    comparison = Comparison(config, args.prompts)
    comparison.run(args.batch, args.k, args.tokens, args.rounds)
    print(comparison.report())
    print(json.dumps(provenance()))


if __name__ == "__main__":
    main()
