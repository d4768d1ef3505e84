"""Measure every K at every batch size, with the engine alone: no HTTP, no Ray.

    python -m benchmarks.sweep configs/sweeps/default.yaml

Rows go to results/sweeps/MODEL-DEVICE.jsonl as they come. Ctrl-C ends it with what it has; the same command goes on.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from uuid import uuid4

from tqdm import tqdm

from benchmarks.engine_client import ChosenK, engine_for_measuring, run_together
from benchmarks.provenance import provenance
from benchmarks.results import Cell, Results, Run, Session, append_row, read_results
from benchmarks.sweep_config import SweepConfig, config_hash, load_sweep_config, measured_model
from benchmarks.timed_drafter import DraftClock, timed
from benchmarks.workloads import OWN_PROMPTS, Prompt, read_prompts, with_background
from replicas.config import EngineConfig
from replicas.drafters.registry import DRAFTERS
from replicas.engine import Engine, build_engine
from replicas.errors import ConfigError, EyrieError
from replicas.request import SamplingParams

RESULTS = Path("results/sweeps")
WARM_UP_TOKENS = 8
INTERRUPTED = 130
"""Exit status after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Task:
    """A run to be done."""

    cell: Cell
    repeat: int


def tasks(config: SweepConfig) -> list[Task]:
    """All runs in the order in which they are done.

    Each repeat is a shuffled round of all cells, so that a machine that drifts slows all of them alike.
    """
    cells = [Cell(k, batch, context) for k, batch, context in product(config.k, config.batch, config.context_tokens)]
    ordered: list[Task] = []
    for repeat in range(config.repeats):
        shuffled = random.Random(f"{config.seed} {repeat}").sample(cells, len(cells))
        ordered += [Task(cell, repeat) for cell in shuffled]
    return ordered


def prompts_of(config: SweepConfig, task: Task, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those that `task` answers: the same for every K, other ones in each repeat as long as there are some."""
    shuffled = random.Random(config.seed).sample(list(prompts), len(prompts))
    count = config.prompts_in_a_run(task.cell.batch)
    return [shuffled[(task.repeat * count + index) % len(shuffled)] for index in range(count)]


class SweepEngine:
    """The engine that runs tasks, warm, with a K that is set from outside."""

    def __init__(self, config: SweepConfig, engine: EngineConfig) -> None:
        self._config = config
        self._policy = ChosenK()
        self._clock = DraftClock()
        self._prompts = read_prompts(config.prompts or OWN_PROMPTS)
        adapted = engine_for_measuring(engine, max(config.k), max(config.batch))
        self._engine: Engine = build_engine(adapted, self._policy, timed(DRAFTERS, self._clock))

    def warm_up(self) -> None:
        """Run every shape, then every K and every batch with real prompts; nothing of it is kept."""
        self._engine.warm_up()
        ks, batches = self._config.k, self._config.batch
        for k, batch in [*((k, max(batches)) for k in ks), *((max(ks), batch) for batch in batches)]:
            self._policy.k = k
            prompts = [self._engine_prompt(prompt, None) for prompt in self._prompts[:batch]]
            run_together(self._engine, prompts, SamplingParams(temperature=0, max_tokens=WARM_UP_TOKENS), batch)

    def run(self, task: Task, session: str) -> Run:
        """Do `task`."""
        chosen = prompts_of(self._config, task, self._prompts)
        prompts = [self._engine_prompt(prompt, task.cell.context_tokens) for prompt in chosen]
        self._policy.k = task.cell.k or 0
        sampling = SamplingParams(temperature=0, max_tokens=self._config.max_tokens)
        trace = run_together(self._engine, prompts, sampling, task.cell.batch, self._clock)
        return Run(session, task.cell, task.repeat, trace, tuple(prompt.category for prompt in chosen))

    def _engine_prompt(self, prompt: Prompt, context_tokens: int | None) -> list[int]:
        codec = self._engine.codec
        assert codec is not None, "build_engine always gives one"
        if context_tokens is not None:
            prompt = with_background(prompt, self._prompts, context_tokens, lambda text: len(codec.encode(text)))
        return codec.encode_chat(prompt.messages)


def new_session(digest: str, model: str, engine: EngineConfig) -> Session:
    """The invocation that is running."""
    method = engine.speculative_config.method if engine.speculative_config else None
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Session(uuid4().hex[:8], began, digest, model, engine.device, method, provenance())


def refuse_mixture(known: Results, session: Session, path: Path) -> None:
    """Raises ConfigError if `path` holds rows of another config or machine: they would be compared with each other."""
    for other in known.sessions:
        if other.config_hash != session.config_hash:
            raise ConfigError(
                f"{path} holds rows of another config (hash {other.config_hash}, now {session.config_hash}); "
                f"name another file with --out, or remove it"
            )
        ours, theirs = session.provenance["machine"], other.provenance.get("machine")
        if ours != theirs:
            raise ConfigError(f"{path} holds rows of another machine ({theirs}); name another file with --out")


def todo(config: SweepConfig, known: Results) -> list[Task]:
    """Tasks without a row."""
    return [task for task in tasks(config) if (task.cell, task.repeat) not in known.done]


def until(deadline: float | None, left: list[Task]) -> Iterator[Task]:
    """`left` with a progress bar, as long as there is time."""
    for task in tqdm(left, unit="run", desc="sweep", file=sys.stderr):
        if deadline is not None and time.perf_counter() > deadline:
            return
        yield task


def sweep(config: SweepConfig, out: Path | None, minutes: float | None) -> int:
    """Do what is left of `config`; returns the exit status. Raises ConfigError."""
    deadline = None if minutes is None else time.perf_counter() + 60 * minutes
    model, engine_config = measured_model(config)
    path = out or RESULTS / f"{model.replace('/', '--')}-{engine_config.device}.jsonl"
    known = read_results(path)
    session = new_session(config_hash(config, engine_config), model, engine_config)
    refuse_mixture(known, session, path)
    left = todo(config, known)
    if not left:
        print(f"{path} is complete: {len(known.runs)} runs")
        return 0
    finished = 0
    try:
        engine = SweepEngine(config, engine_config)
        engine.warm_up()
        append_row(path, session)
        for task in until(deadline, left):
            append_row(path, engine.run(task, session.id))
            finished += 1
    except KeyboardInterrupt:
        print(
            f"\ninterrupted; {path} holds {len(known.runs) + finished} runs, the same command goes on", file=sys.stderr
        )
        return INTERRUPTED
    total = len(known.runs) + len(left)
    print(f"{path} holds {len(known.runs) + finished} of {total} runs")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--prompts", type=Path, help="JSON lines with `turns`, instead of the config's")
    parser.add_argument("--out", type=Path, help=f"file of rows; {RESULTS}/MODEL-DEVICE.jsonl by default")
    parser.add_argument("--minutes", type=float, help="begin no run after this time; the same command goes on")
    args = parser.parse_args(arguments)
    try:
        config = load_sweep_config(args.config)
        if args.prompts is not None:
            config = config.model_copy(update={"prompts": args.prompts})
        return sweep(config, args.out, args.minutes)
    except EyrieError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
