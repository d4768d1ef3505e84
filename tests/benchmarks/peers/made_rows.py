"""Rows of a race whose figures are known."""

import json

from benchmarks.metrics import Answer
from benchmarks.results import RaceAnswer, Session

OURS, PLAIN, SLOW, OTHER = "Eyrie, its K schedule", "Eyrie, K=0", "llama.cpp, F16", "vLLM, CPU, fp32, K=0"


def session(name: str, environments: tuple[str, ...] = ("eyrie",)) -> Session:
    facts = {"commit": "abc", "machine": "a machine", "threads": "2", "command": f"python -m benchmarks.peers {name}"}
    versions = {environment: f"{environment}-package 1.0" for environment in environments}
    race = json.dumps({"tokens": 11, "environments": environments})
    return Session(name, "2026-12-01T00:00:00+00:00", "h", "tiny", "cpu", "eagle3", facts | versions | {"race": race})


def row(
    contestant: str, prompt: int, tpot_ms: float, text: str = "same", of: str = "s1", steps: int = 10
) -> RaceAnswer:
    """Eleven tokens, the first after 0.1 s."""
    answer = Answer(0.1, 0.1 + 1e-3 * tpot_ms * 10, 11)
    return RaceAnswer(of, contestant, prompt, "", answer, steps, 10, text)
