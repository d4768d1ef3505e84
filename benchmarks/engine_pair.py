"""Our engine and vLLM on the same prompts, with the same drafter: TPOT and acceptance by position, paired in one run.

    python -m benchmarks.engine_pair configs/eagle3.yaml configs/vllm.yaml --limit 12

Needs an environment with vLLM (make setup-vllm). For every prompt both answer, one after the other, in a random order.
K is each config's num_speculative_tokens, not its schedule's, so that positions can be compared.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tqdm import tqdm

from benchmarks.engine_client import EngineAnswer, OpenAnswer, closed_answer
from benchmarks.metrics import acceptance_by_position, median_ratio, pooled
from benchmarks.provenance import provenance
from benchmarks.workloads import OWN_PROMPTS, Prompt, read_prompts
from replicas.errors import EyrieError
from replicas.request import Acceptance, GenerationRequest, SamplingParams
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.engine_protocol import AsyncEngine, build_served_engine
from serve_app.k_policy import FixedK
from serve_app.serve_config import load_settings
from serve_app.settings import AnyModelSettings

WARM_UP_TOKENS = 8


@dataclass(slots=True)
class Side:
    """One engine and what it answered, in the order of the prompts."""

    settings: AnyModelSettings
    engine: AsyncEngine
    answers: list[EngineAnswer] = field(default_factory=list[EngineAnswer])

    @property
    def acceptance(self) -> Acceptance:
        """Over all prompts."""
        return pooled(answer.acceptance for answer in self.answers)

    @property
    def tpots(self) -> list[float]:
        """Of answers with more than one token on both sides: all, with ignore_eos."""
        return [answer.answer.tpot for answer in self.answers]


async def answer_alone(engine: AsyncEngine, prompt: Prompt, sampling: SamplingParams, name: str) -> EngineAnswer:
    """Answer `prompt` with nothing else running."""
    request = GenerationRequest(name, tuple(engine.codec.encode_chat(prompt.messages)), sampling)
    answer = OpenAnswer(0, time.perf_counter())
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            answer.hear(output, time.perf_counter())
            if output.finish_reason is not None:
                return closed_answer(answer, output, output.finish_reason)
    raise RuntimeError("an answer that has no end")


async def run_pair(sides: Sequence[Side], prompts: Sequence[Prompt], tokens: int) -> None:
    """Every prompt on each side, `tokens` tokens each, greedy."""
    warm = SamplingParams(temperature=0, max_tokens=WARM_UP_TOKENS, ignore_eos=True)
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    for side in sides:
        await answer_alone(side.engine, prompts[0], warm, "warm-up")
    shuffle = random.Random(0)
    for index, prompt in enumerate(tqdm(prompts, unit="prompt", file=sys.stderr)):
        for side in shuffle.sample(list(sides), len(sides)):
            side.answers.append(await answer_alone(side.engine, prompt, sampling, str(index)))


def report(sides: Sequence[Side]) -> str:
    """A Markdown table; ratios are medians of pairs, over the first side."""
    lines = [
        "| engine | dtype | TPOT ms | TPOT over the first | mean acceptance length | by position | same tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    base = sides[0]
    for side in sides:
        speculative = side.settings.speculative_config
        k = speculative.num_speculative_tokens if speculative else 0
        positions = " ".join(f"{share:.3f}" for share in acceptance_by_position(side.acceptance, k))
        same = sum(a.token_ids == b.token_ids for a, b in zip(side.answers, base.answers, strict=True))
        lines.append(
            f"| {side.settings.engine} | {side.settings.dtype} | {1e3 * median(side.tpots):.1f} "
            f"| {median_ratio(side.tpots, base.tpots):.2f} | {side.acceptance.mean_acceptance_length:.3f} "
            f"| {positions} | {same}/{len(side.answers)} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", type=Path, nargs="+", help="Serve YAMLs; the first model of each")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--limit", type=int, help="number of prompts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", help="of our own engine's linears, instead of the config's")
    args = parser.parse_args()
    sides: list[Side] = []
    try:
        for path in args.configs:
            model = load_settings(path).models[0]
            if args.dtype and model.engine == "eyrie":
                model = model.model_copy(update={"dtype": args.dtype})
            config = with_local_checkpoints(model.engine_config)
            k = model.speculative_config.num_speculative_tokens if model.speculative_config else 0
            sides.append(Side(model, build_served_engine(config, FixedK(k))))
        asyncio.run(run_pair(sides, read_prompts(args.prompts, args.limit), args.tokens))
        print(report(sides))
        print(json.dumps(provenance()))
    except EyrieError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        for side in sides:
            side.engine.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
