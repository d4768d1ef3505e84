"""Does an outside client see our TPOT? guidellm on the same prompts, one at a time, between two rounds of ours.

    python -m benchmarks.load.against_guidellm --url http://127.0.0.1:8000

guidellm is installed in an environment that is removed again, unless --python names one that has it. Its
inter_token_latency_ms is our TPOT; what it calls time_per_output_token_ms has the TTFT in it. Status 2: they differ by
more than 5 %.
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
from statistics import median
from typing import Any

import httpx

from benchmarks.load.chat_client import ChatSettings, RequestError, ask
from benchmarks.load.recording import first_model
from benchmarks.workloads import OWN_PROMPTS, Prompt, read_prompts
from replicas.errors import ConfigError

GUIDELLM = "guidellm==0.8.*"
TOLERANCE = 0.05
DIFFERENT = 2


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


def tpots_of_report(report: dict[str, Any]) -> list[float]:
    """Seconds, of every answer with two tokens or more."""
    (benchmark,) = report["benchmarks"]
    answers = benchmark["requests"]["successful"]
    return [1e-3 * one["inter_token_latency_ms"] for one in answers if one["inter_token_latency_ms"] is not None]


def by_guidellm(python: Path, url: str, settings: ChatSettings, prompts: Sequence[Prompt], folder: Path) -> list[float]:
    """TPOT of every answer. Raises ConfigError if guidellm fails."""
    report, config = folder / "report.json", folder / "scenario.json"
    config.write_text(json.dumps(scenario(url, settings, prompts, report)))
    command = [str(python), "-m", "guidellm", "run", "--config", str(config), "--disable-console-interactive"]
    ended = subprocess.run(command, check=False)
    if ended.returncode or not report.exists():
        raise ConfigError(f"guidellm ended with status {ended.returncode}: {' '.join(command)}")
    return tpots_of_report(json.loads(report.read_text()))


def by_us(client: httpx.Client, settings: ChatSettings, prompts: Sequence[Prompt]) -> list[float]:
    """TPOT of every answer, one request at a time."""
    answers = [ask(client, settings, prompt.text) for prompt in prompts]
    return [tpot for one in answers if (tpot := one.tpot) is not None]


def environment(folder: Path) -> Path:
    """Make one with guidellm; returns its Python. Its torch is the version that is here, not the newest with CUDA."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"torch=={version('torch').split('+')[0]}"], check=True)
    subprocess.run([*install, GUIDELLM], check=True)
    return python


def compare(args: argparse.Namespace) -> int:
    """Print both medians; returns the exit status. Raises ConfigError, RequestError."""
    prompts = read_prompts(args.prompts, args.limit)
    with (
        tempfile.TemporaryDirectory() as folder,
        httpx.Client(base_url=args.url, timeout=600, trust_env=False) as client,
    ):
        settings = ChatSettings(args.model or first_model(client), args.max_tokens)
        python = args.python or environment(Path(folder) / "environment")
        ask(client, settings, prompts[0].text)
        before = by_us(client, settings, prompts)
        theirs = by_guidellm(python, args.url, settings, prompts, Path(folder))
        after = by_us(client, settings, prompts)
    if len(theirs) != len(before):
        raise ConfigError(f"guidellm has the TPOT of {len(theirs)} answers, we of {len(before)}: they do not compare")
    ours = median(before + after)
    ratio = median(theirs) / ours
    seen = {
        "answers": len(theirs),
        "tpot_ms": round(1e3 * ours, 3),
        "tpot_before_and_after_ms": [round(1e3 * median(times), 3) for times in (before, after)],
        "guidellm_ms": round(1e3 * median(theirs), 3),
        "ratio": round(ratio, 4),
    }
    print(json.dumps(seen))
    return 0 if abs(ratio - 1) <= TOLERANCE else DIFFERENT


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="the first that the server names")
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--limit", type=int, default=20, help="prompts (20)")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer (128)")
    parser.add_argument("--python", type=Path, help="of an environment that has guidellm")
    try:
        return compare(parser.parse_args(arguments))
    except (ConfigError, RequestError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
