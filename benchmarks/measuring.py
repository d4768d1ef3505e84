"""Doing runs: an engine that answers cells' prompts, and the file that keeps what came out."""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from tqdm import tqdm

from benchmarks.engine_client import ChosenPolicy, engine_for_measuring, run_together
from benchmarks.provenance import provenance
from benchmarks.results import Cell, Results, Run, Session, append_row, read_results
from benchmarks.sweep_config import AnyEngineConfig, SweepConfig
from benchmarks.timed_drafter import DraftClock, timed
from benchmarks.workloads import OWN_PROMPTS, Prompt, read_prompts, with_background
from replicas.config import EngineConfig
from replicas.drafters.registry import DRAFTERS
from replicas.engine import Engine, build_engine
from replicas.errors import ConfigError
from replicas.request import SamplingParams
from replicas.scheduling.k_policy import KPolicy
from replicas.text_codec import TextCodec
from replicas.vllm_engine.config import VllmConfig
from serve_app.k_policy import FixedK

WARM_UP_TOKENS = 8
INTERRUPTED = 130
"""Exit status after Ctrl-C."""
UNFINISHED = 3
"""Exit status when the time is over before the runs are."""


@dataclass(frozen=True, slots=True)
class Task:
    """A run to be done."""

    cell: Cell
    repeat: int


def prompts_of(config: SweepConfig, task: Task, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Those that `task` answers: the same for every K, other ones in each repeat as long as there are some."""
    shuffled = random.Random(config.seed).sample(list(prompts), len(prompts))
    count = config.prompts_in_a_run(task.cell.batch)
    return [shuffled[(task.repeat * count + index) % len(shuffled)] for index in range(count)]


def engine_prompt(codec: TextCodec, prompt: Prompt, others: Sequence[Prompt], context_tokens: int | None) -> list[int]:
    """Token ids of `prompt`, as it is or behind `others` until it has `context_tokens`."""
    if context_tokens is not None:
        prompt = with_background(prompt, others, context_tokens, lambda text: len(codec.encode(text)))
    return codec.encode_chat(prompt.messages)


class Measurer(Protocol):
    """An engine that does tasks."""

    def warm_up(self) -> None:
        """Nothing of it is kept."""
        ...

    def run(self, task: Task, session: str, policy: KPolicy) -> Run:
        """Do `task` with K by `policy`."""
        ...

    def close(self) -> None:
        """End what runs in other processes."""
        ...


class MeasuringEngine:
    """Our own engine, each task with a fresh K policy."""

    def __init__(self, config: SweepConfig, engine: EngineConfig) -> None:
        self._config = config
        self._policy = ChosenPolicy(FixedK(0))
        self._clock = DraftClock()
        self._prompts = read_prompts(config.prompts or OWN_PROMPTS)
        adapted = engine_for_measuring(engine, max(config.k), max(config.batch))
        self._engine: Engine = build_engine(adapted, self._policy, timed(DRAFTERS, self._clock))

    def warm_up(self) -> None:
        """Run every shape, then every K and every batch with real prompts; nothing of it is kept."""
        self._engine.warm_up()
        ks, batches = self._config.k, self._config.batch
        for k, batch in [*((k, max(batches)) for k in ks), *((max(ks), batch) for batch in batches)]:
            self._policy.current = FixedK(k)
            prompts = [self._engine_prompt(prompt, None) for prompt in self._prompts[:batch]]
            run_together(self._engine, prompts, SamplingParams(temperature=0, max_tokens=WARM_UP_TOKENS), batch)

    def run(self, task: Task, session: str, policy: KPolicy) -> Run:
        """Do `task` with K by `policy`."""
        chosen = prompts_of(self._config, task, self._prompts)
        prompts = [self._engine_prompt(prompt, task.cell.context_tokens) for prompt in chosen]
        self._policy.current = policy
        sampling = SamplingParams(temperature=0, max_tokens=self._config.max_tokens)
        trace = run_together(self._engine, prompts, sampling, task.cell.batch, self._clock)
        return Run(session, task.cell, task.repeat, trace, tuple(prompt.category for prompt in chosen))

    def close(self) -> None:
        """See Measurer."""

    def _engine_prompt(self, prompt: Prompt, context_tokens: int | None) -> list[int]:
        codec = self._engine.codec
        assert codec is not None, "build_engine always gives one"
        return engine_prompt(codec, prompt, self._prompts, context_tokens)


def new_session(digest: str, model: str, engine: AnyEngineConfig) -> Session:
    """The invocation that is running."""
    method = engine.speculative_config.method if engine.speculative_config else None
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    kind = "vllm" if isinstance(engine, VllmConfig) else "eyrie"
    return Session(uuid4().hex[:8], began, digest, model, engine.device, method, provenance(), kind)


def refuse_mixture(known: Results, session: Session, path: Path) -> None:
    """Raises ConfigError if `path` holds rows of another config or machine: they would be compared with each other."""
    for other in known.sessions:
        if other.config_hash != session.config_hash:
            raise ConfigError(
                f"{path} holds rows of another config (hash {other.config_hash}, now {session.config_hash}); "
                f"name another file with --out, or remove it"
            )
        before, now = other.provenance.get("commit"), session.provenance["commit"]
        if before != now:
            print(f"note: {path} also holds rows of commit {before}; now it is {now}", file=sys.stderr)
        ours, theirs = session.provenance["machine"], other.provenance.get("machine")
        if ours != theirs:
            raise ConfigError(f"{path} holds rows of another machine ({theirs}); name another file with --out")


def measure(
    tasks: Sequence[Task],
    policy_of: Callable[[Cell], KPolicy],
    build: Callable[[], Measurer],
    session: Session,
    path: Path,
    minutes: float | None,
) -> int:
    """Do those of `tasks` that have no row in `path`, and begin none after `minutes`; returns the exit status.

    Raises ConfigError if `path` holds rows of another config or machine.
    """
    deadline = None if minutes is None else time.perf_counter() + 60 * minutes
    known = read_results(path)
    refuse_mixture(known, session, path)
    left = [task for task in tasks if (task.cell, task.repeat) not in known.done]
    finished = len(tasks) - len(left)
    if not left:
        print(f"{path} is complete: {finished} runs", file=sys.stderr)
        return 0
    engine: Measurer | None = None
    try:
        engine = build()
        engine.warm_up()
        append_row(path, session)
        for task in tqdm(left, unit="run", file=sys.stderr):
            if deadline is not None and time.perf_counter() > deadline:
                break
            append_row(path, engine.run(task, session.id, policy_of(task.cell)))
            finished += 1
    except KeyboardInterrupt:
        print(f"\ninterrupted; {path} holds {finished} of {len(tasks)} runs, the same command goes on", file=sys.stderr)
        return INTERRUPTED
    finally:
        if engine is not None:
            engine.close()
    print(f"{path} holds {finished} of {len(tasks)} runs", file=sys.stderr)
    return 0 if finished == len(tasks) else UNFINISHED
