"""Rows of measurements, as JSON lines: a session (who measured, where) or a run (what came out), never averaged."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from benchmarks.engine_client import LoopTrace
from benchmarks.metrics import Throughput, pooled
from replicas.errors import ConfigError
from replicas.request import Acceptance


@dataclass(frozen=True, slots=True)
class Session:
    """One invocation of a command that measures; its runs name it."""

    id: str
    began: str
    """UTC, ISO 8601."""
    config_hash: str
    model: str
    """The model's id."""
    device: str
    method: str | None
    """The drafter's."""
    provenance: dict[str, str]
    """Commit, machine, versions, command."""
    engine: str = "eyrie"
    kind: Literal["session"] = "session"


@dataclass(frozen=True, slots=True)
class Cell:
    """What is varied."""

    k: int | None
    """Draft tokens a step; None: as a schedule says."""
    batch: int
    """Sequences at a time."""
    context_tokens: int | None = None
    """To which prompts were lengthened."""


@dataclass(frozen=True, slots=True)
class Run:
    """One cell once: so many prompts in a closed loop of `batch`."""

    session: str
    cell: Cell
    repeat: int
    """Runs of the same batch, context and repeat have the same prompts, so their answers are pairs."""
    trace: LoopTrace
    categories: tuple[str, ...]
    """Of each answer's prompt."""
    kind: Literal["run"] = "run"

    @property
    def acceptance(self) -> Acceptance:
        """Of all answers."""
        return pooled(answer.acceptance for answer in self.trace.answers)

    @property
    def tpots(self) -> list[float | None]:
        """Of each answer; None where it has a single token."""
        answers = (answer.answer for answer in self.trace.answers)
        return [answer.tpot if answer.tokens > 1 else None for answer in answers]

    @property
    def throughput(self) -> Throughput:
        """Output tokens a second over all answers."""
        pairs = zip(self.trace.submitted, self.trace.answers, strict=True)
        events = ((start + chunk.seconds, chunk.tokens) for start, answer in pairs for chunk in answer.trace.chunks)
        return Throughput.of(events, self.trace.seconds)


Row = Annotated[Session | Run, Field(discriminator="kind")]
_ROW: TypeAdapter[Session | Run] = TypeAdapter(Row)


@dataclass(frozen=True, slots=True)
class Results:
    """All rows of a file."""

    sessions: tuple[Session, ...] = ()
    runs: tuple[Run, ...] = ()

    @property
    def done(self) -> frozenset[tuple[Cell, int]]:
        """Cells with their repeats."""
        return frozenset((run.cell, run.repeat) for run in self.runs)


def append_row(path: Path, row: Session | Run) -> None:
    """Add a line; it is on the disk when this returns. An interrupted line before it is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            if whole < size:
                file.truncate(whole)
        file.write(_ROW.dump_json(row) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_results(path: Path) -> Results:
    """The rows of `path`, none if it is not there; a last line without its end was interrupted and does not count.

    Raises ConfigError for a line that is no row.
    """
    if not path.exists():
        return Results()
    sessions: list[Session] = []
    runs: list[Run] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = _ROW.validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}, line {number} is no row of measurements: {place}: {first['msg']}") from None
        if isinstance(row, Session):
            sessions.append(row)
        else:
            runs.append(row)
    return Results(tuple(sessions), tuple(runs))
