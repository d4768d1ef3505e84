"""All contestants on the same prompts, each alone on the machine while it answers."""

import hashlib
import os
import random
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter
from tqdm import tqdm

from benchmarks.line_worker import LineWorker
from benchmarks.metrics import Answer
from benchmarks.peers.contestants import Contestant, WorkerSpec, command_of
from benchmarks.peers.lines import Ask, Ready, Told
from benchmarks.results import RaceAnswer
from replicas.errors import ConfigError
from serve_app.checkpoint_paths import PROJECT_ROOT

ASK: TypeAdapter[Ask] = TypeAdapter(Ask)
TOLD: TypeAdapter[Told] = TypeAdapter(Told)
READY: TypeAdapter[Ready] = TypeAdapter(Ready)
FEWEST_TOKENS = 8
"""A shorter answer has no TPOT worth the name."""
WARM_UP_TOKENS = 16
OURS_ALONE = "GOMP_SPINCOUNT"
"""Set for our engine: the peers' threads wait as they would by themselves."""


@dataclass(frozen=True, slots=True)
class RacePrompt:
    """A prompt as every contestant gets it."""

    category: str
    token_ids: tuple[int, ...]


class Workers:
    """A running process for each worker that the contestants need. Raises ConfigError if one does not get ready."""

    def __init__(self, contestants: Sequence[Contestant], named: dict[str, Path], stack: ExitStack) -> None:
        specs = list(dict.fromkeys(contestant.worker for contestant in contestants))
        commands = [(spec, command_of(spec, named)) for spec in specs]
        self._running: dict[WorkerSpec, LineWorker] = {}
        for spec, command in commands:
            self._running[spec] = LineWorker(f"the worker {' '.join(command)}", command, env=_environment(spec))
            stack.callback(self._running[spec].close)
        self.versions: dict[str, str] = {}
        for spec, running in self._running.items():
            versions = READY.validate_json(running.read()).versions
            name = spec.environment or "eyrie"
            self.versions[name] = ", ".join(f"{package} {version}" for package, version in versions.items())
            print(f"ready: {' '.join([spec.module.rpartition('.')[2], *spec.arguments])}", file=sys.stderr)

    def ask(self, contestant: Contestant, prompt: RacePrompt, tokens: int, may_end: bool = False) -> Told:
        """An answer of `contestant`. Raises ConfigError for one of another length than was asked for."""
        line = ASK.dump_json(Ask(list(prompt.token_ids), tokens, contestant.mode, may_end))
        told = TOLD.validate_json(self._running[contestant.worker].ask(line))
        if not may_end and len(told.token_ids) != tokens:
            raise ConfigError(f"{contestant.label} answered {len(told.token_ids)} tokens where {tokens} were asked for")
        return told


def race(
    workers: Workers, contestants: Sequence[Contestant], prompts: Sequence[RacePrompt], tokens: int, session: str
) -> Generator[RaceAnswer]:
    """Answers as they come: each prompt by every contestant, in a fresh random order.

    The first contestant, ours, tells how long the model's own answer is, up to `tokens`: all generate as many, so that
    nobody is timed on what follows an end of text. Prompts with very short answers are left out.
    """
    for contestant in contestants:
        workers.ask(contestant, prompts[0], WARM_UP_TOKENS)
    shuffle = random.Random(0)
    for index, prompt in enumerate(tqdm(prompts, unit="prompt", file=sys.stderr)):
        length = len(workers.ask(contestants[0], prompt, tokens, may_end=True).token_ids)
        if length < FEWEST_TOKENS:
            continue
        for contestant in shuffle.sample(list(contestants), len(contestants)):
            told = workers.ask(contestant, prompt, length)
            yield race_answer(told, contestant.label, index, prompt.category, session)


def race_answer(told: Told, contestant: str, prompt: int, category: str, session: str) -> RaceAnswer:
    """The row of `told`."""
    text = hashlib.sha256(" ".join(map(str, told.token_ids)).encode()).hexdigest()[:12]
    (first, _), (last, _) = told.chunks[0], told.chunks[-1]
    answer = Answer(round(first, 6), round(last, 6), len(told.token_ids))
    stepped = sum(count for _, count in told.chunks[1:])
    return RaceAnswer(session, contestant, prompt, category, answer, len(told.chunks) - 1, stepped, text)


def _environment(spec: WorkerSpec) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if spec.environment is None or name != OURS_ALONE}
    return kept | {"PYTHONPATH": str(PROJECT_ROOT)}


def race_hash(contestants: Sequence[Contestant], prompts: Sequence[RacePrompt], tokens: int) -> str:
    """12 hex digits that change with what is raced."""
    what = repr(([contestant.label for contestant in contestants], [asdict(prompt) for prompt in prompts], tokens))
    return hashlib.sha256(what.encode()).hexdigest()[:12]
