"""Does an outside client see our TPOT? guidellm on the same prompts, one at a time, each round between two of ours.

    python -m benchmarks.load.against_guidellm --url http://127.0.0.1:8000

guidellm is installed in an environment that is removed again, unless --python names one that has it. Its
inter_token_latency_ms is our TPOT; what it calls time_per_output_token_ms has the TTFT in it. Each of its answers is
compared with the mean of ours to the same prompt before and after it. Status 2: the median ratio is off by over 5 %.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import httpx

from benchmarks.load.chat_client import ChatSettings, RequestError, ask
from benchmarks.load.recording import first_model
from benchmarks.workloads import OWN_PROMPTS, Prompt, read_prompts
from replicas.errors import ConfigError

GUIDELLM = "guidellm==0.8.*"
TOLERANCE = 0.05
DIFFERENT = 2
ITL = "inter_token_latency_ms"


def scenario(url: str, settings: ChatSettings, prompts: Sequence[Prompt], report: Path) -> dict[str, Any]:
    """guidellm's, for the same requests as ours."""
    body: dict[str, Any] = {"temperature": settings.temperature}
    return {
        "spec": {
            "backend": {
                "kind": "openai_http",
                "target": url,
                "model": settings.model,
                "request_format": "/v1/chat/completions",
                "validate_backend": False,
                "max_tokens": settings.max_tokens,
                "extras": {"body": body},
            },
            "profile": {"kind": "synchronous"},
            "constraints": [{"kind": "max_requests", "count": len(prompts)}],
            "data": [{"kind": "in_memory_dict_list", "data": [{"prompt": prompt.text} for prompt in prompts]}],
            "outputs": [{"kind": "json", "path": str(report)}],
        }
    }


class TimedAnswer(NamedTuple):
    """What is compared."""

    prompt_tokens: int
    """By the server's count, which tells that both sides speak of the same prompt."""
    tpot: float | None
    """Seconds."""


def answers_of_report(report: dict[str, Any]) -> list[TimedAnswer]:
    """In the order in which guidellm asked."""
    (benchmark,) = report["benchmarks"]
    return [
        TimedAnswer(one["prompt_tokens"], None if one[ITL] is None else 1e-3 * one[ITL])
        for one in benchmark["requests"]["successful"]
    ]


def by_guidellm(
    python: Path, url: str, settings: ChatSettings, prompts: Sequence[Prompt], folder: Path
) -> list[TimedAnswer]:
    """Every answer. Raises ConfigError if guidellm fails."""
    report, config = folder / "report.json", folder / "scenario.json"
    config.write_text(json.dumps(scenario(url, settings, prompts, report)))
    command = [str(python), "-m", "guidellm", "run", "--config", str(config), "--disable-console-interactive"]
    report.unlink(missing_ok=True)
    ended = subprocess.run(command, check=False)
    if ended.returncode or not report.exists():
        raise ConfigError(f"guidellm ended with status {ended.returncode}: {' '.join(command)}")
    return answers_of_report(json.loads(report.read_text()))


def by_us(client: httpx.Client, settings: ChatSettings, prompts: Sequence[Prompt]) -> list[TimedAnswer]:
    """Every answer, one request at a time."""
    answers = [ask(client, settings, prompt.text) for prompt in prompts]
    return [TimedAnswer(one.num_prompt_tokens, one.tpot) for one in answers]


def ratios(before: Sequence[TimedAnswer], theirs: Sequence[TimedAnswer], after: Sequence[TimedAnswer]) -> list[float]:
    """TPOT by guidellm over ours, of each prompt. Raises ConfigError if the answers are not to the same prompts."""
    asked = [[one.prompt_tokens for one in side] for side in (before, theirs, after)]
    if asked[0] != asked[1] or asked[0] != asked[2]:
        raise ConfigError(
            f"guidellm's prompts have {asked[1]} tokens and ours {asked[0]}: the answers are not to the same prompts"
        )
    found: list[float] = []
    for first, their, second in zip(before, theirs, after, strict=True):
        if first.tpot and their.tpot and second.tpot:
            found.append(their.tpot / mean([first.tpot, second.tpot]))
    return found


def environment(folder: Path) -> Path:
    """Make one with guidellm; returns its Python. Its torch is the version that is here, not the newest with CUDA."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"torch=={version('torch').split('+')[0]}"], check=True)
    subprocess.run([*install, GUIDELLM], check=True)
    return python


def compare(args: argparse.Namespace) -> int:
    """Print the medians and the ratio of pairs; returns the exit status. Raises ConfigError, RequestError."""
    prompts = read_prompts(args.prompts, args.limit)
    with (
        tempfile.TemporaryDirectory() as folder,
        httpx.Client(base_url=args.url, timeout=600, trust_env=False) as client,
    ):
        settings = ChatSettings(args.model or first_model(client), args.max_tokens)
        python = args.python or environment(Path(folder) / "environment")
        by_us(client, settings, prompts)
        ours, theirs = [by_us(client, settings, prompts)], list[list[TimedAnswer]]()
        for _ in range(args.rounds):
            theirs.append(by_guidellm(python, args.url, settings, prompts, Path(folder)))
            ours.append(by_us(client, settings, prompts))
    pairs = [ratio for turn in zip(ours, theirs, ours[1:], strict=False) for ratio in ratios(*turn)]
    if not pairs:
        raise ConfigError("no answer has two tokens: there is no TPOT to compare")
    ratio = median(pairs)
    seen = {
        "answers": len(pairs),
        "tpot_ms": [median_ms(side) for side in ours],
        "guidellm_ms": [median_ms(side) for side in theirs],
        "ratio": round(ratio, 4),
    }
    print(json.dumps(seen))
    return 0 if abs(ratio - 1) <= TOLERANCE else DIFFERENT


def median_ms(answers: Sequence[TimedAnswer]) -> float:
    """Of one round."""
    return round(1e3 * median(one.tpot for one in answers if one.tpot), 3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="the first that the server names")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--limit", type=int, default=8, help="prompts (8)")
    parser.add_argument("--rounds", type=int, default=4, help="of guidellm (4)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (64)")
    parser.add_argument("--python", type=Path, help="of an environment that has guidellm")
    try:
        return compare(parser.parse_args(arguments))
    except (ConfigError, RequestError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
