"""A race between made-up workers, whose times and texts are known."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.metrics import Answer
from benchmarks.peers import race as module
from benchmarks.peers.contestants import Contestant, WorkerSpec
from benchmarks.peers.lines import Told
from benchmarks.peers.race import RacePrompt, Workers, race, race_answer
from replicas.errors import ConfigError
from tests.benchmarks.peers.made_rows import OURS, PLAIN, SLOW

WORKER = """
import json, os, sys
name = sys.argv[1]
log = open(sys.argv[2], "a")
print(json.dumps({"versions": {name: "1.0", "spins": os.environ.get("GOMP_SPINCOUNT", "by itself")}}), flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    # The prompt's first token is how long the model's own answer is.
    count = min(ask["tokens"], ask["prompt"][0]) if ask["may_end"] else ask["tokens"] - (name == "short")
    log.write(json.dumps([name, ask["mode"], ask["prompt"][0], ask["tokens"], ask["may_end"]]) + "\\n")
    log.flush()
    step = {"0": 0.02, "schedule": 0.01, "": 0.04}[ask["mode"]]
    chunks = [[0.1 + step * index, 1] for index in range(count)]
    print(json.dumps({"chunks": chunks, "token_ids": list(range(count))}), flush=True)
"""
PROMPTS = [RacePrompt("a", (20,)), RacePrompt("b", (5,)), RacePrompt("a", (9,))]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script, log = tmp_path / "worker.py", tmp_path / "log"
    script.write_text(WORKER)

    def command_of(worker: WorkerSpec, named: dict[str, Path]) -> list[str]:
        return [sys.executable, str(script), worker.module, str(log)]

    monkeypatch.setattr(module, "command_of", command_of)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    return log


def field_of(log: Path) -> list[list[object]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


OWN = WorkerSpec(None, "own", ())
FIELD = [
    Contestant(OURS, OWN, "schedule"),
    Contestant(PLAIN, OWN, "0"),
    Contestant(SLOW, WorkerSpec("llama.cpp", "slow", ())),
]


def test_every_contestant_answers_every_prompt_as_long_as_the_models_own_answer(log: Path) -> None:
    with ExitStack() as stack:
        workers = Workers(FIELD, {}, stack)
        rows = list(race(workers, FIELD, PROMPTS, 12, "s"))
    # Two contestants share a process; ours alone has our setting of OpenMP.
    assert workers.versions == {"eyrie": "own 1.0, spins 7", "llama.cpp": "slow 1.0, spins by itself"}
    # The second prompt's own answer has five tokens: too few.
    assert {(row.contestant, row.prompt, row.answer.tokens) for row in rows} == {
        (label, prompt, tokens) for label in (OURS, PLAIN, SLOW) for prompt, tokens in ((0, 12), (2, 9))
    }
    assert [row.category for row in rows] == ["a"] * 6
    tpots = {row.contestant: row.answer.tpot for row in rows if row.prompt == 2}
    assert tpots == pytest.approx({OURS: 0.01, PLAIN: 0.02, SLOW: 0.04})
    asked = field_of(log)
    assert sorted(map(str, asked[:3])) == sorted(
        map(str, [["own", "schedule", 20, 16, False], ["own", "0", 20, 16, False], ["slow", "", 20, 16, False]])
    )
    assert [one for one in asked if one[4]] == [["own", "schedule", length, 12, True] for length in (20, 5, 9)]


def test_the_order_changes_from_prompt_to_prompt(log: Path) -> None:
    with ExitStack() as stack:
        rows = list(race(Workers(FIELD, {}, stack), FIELD, [RacePrompt("", (9,))] * 40, 12, "s"))
    orders = {tuple(row.contestant for row in rows if row.prompt == prompt) for prompt in range(40)}
    assert len(orders) > 3
    assert {order[0] for order in orders} == {OURS, PLAIN, SLOW}


def test_an_answer_of_another_length_ends_the_race(log: Path) -> None:
    field = [FIELD[0], Contestant("shorter", WorkerSpec("vllm", "short", ()))]
    with ExitStack() as stack:
        workers = Workers(field, {}, stack)
        with pytest.raises(ConfigError, match="shorter answered 15 tokens where 16 were asked for"):
            list(race(workers, field, PROMPTS, 12, "s"))


def test_a_worker_that_does_not_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "command_of", lambda worker, named: [sys.executable, "-c", "raise SystemExit(3)"])
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"the worker .* ended with status 3; see above"):
        Workers(FIELD, {}, stack)


def test_a_row_holds_times_counts_and_the_text_as_a_digest() -> None:
    told = Told([(0.2, 1), (0.3, 3), (0.5, 2)], [7, 8, 9, 1, 2, 3])
    row = race_answer(told, OURS, 4, "math", "s")
    assert row.answer == Answer(0.2, 0.5, 6)
    assert (row.steps, row.step_tokens, row.prompt, row.category) == (2, 5, 4, "math")
    assert race_answer(told, SLOW, 4, "math", "s").text == row.text
    assert race_answer(Told(told.chunks, [7, 8, 9, 1, 2, 4]), OURS, 4, "math", "s").text != row.text
