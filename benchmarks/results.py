"""Rows of measurements, as JSON lines, never averaged: a session (who measured, where), a run, a served request, a
change of the fleet that serves, or an answer in a race of engines.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from benchmarks.engine_client import LoopTrace
from benchmarks.metrics import Answer, Throughput, pooled
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


@dataclass(frozen=True, slots=True)
class Served:
    """An answer as a client of the server saw it."""

    first_content: float | None
    """TTFT: seconds from the request to the first content; None: it was not streamed, or has no content."""
    end_to_end: float
    content_chunks: tuple[float, ...]
    """Seconds from the request to each chunk with content."""
    tokens: int
    """Output tokens by the server's count."""
    num_prompt_tokens: int
    acceptance: Acceptance | None
    """None: the server does not say. By position it never says."""

    @property
    def tpot(self) -> float | None:
        """As Answer's; None where nothing tells when the first token came, or there is one token alone."""
        if self.first_content is None or self.tokens < 2:
            return None
        return Answer(self.first_content, self.end_to_end, self.tokens).tpot


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request to a server, alone or among others."""

    session: str
    arrival: float
    """Seconds since the session began when it was sent."""
    arrivals: Literal["closed", "poisson"]
    users: int
    """Of the load when it was sent. Closed: requests at once; open: each sends at its own rate."""
    streamed: bool
    category: str
    """Of its prompt."""
    served: Served | None
    """None: it failed."""
    failure: str | None = None
    """Why, in one sentence."""
    kind: Literal["request"] = "request"


@dataclass(frozen=True, slots=True)
class Fleet:
    """What stood against each other from a moment of a load on; the next row of the session ends it."""

    session: str
    seconds: float
    """Since the session began, to some tenths of a second."""
    users: int
    """That the load had then; 0: it was over."""
    replicas: int
    """That were running."""
    kind: Literal["fleet"] = "fleet"


@dataclass(frozen=True, slots=True)
class RaceAnswer:
    """One contestant's answer to one prompt; answers of a session to the same prompt are pairs."""

    session: str
    contestant: str
    prompt: int
    """Its number in the session."""
    category: str
    answer: Answer
    steps: int
    """Arrivals after the first."""
    step_tokens: int
    """That came with them."""
    text: str
    """12 hex digits of the token ids."""
    kind: Literal["race"] = "race"


AnyRow = Session | Run | HttpRequest | Fleet | RaceAnswer
Row = Annotated[AnyRow, Field(discriminator="kind")]
_ROW: TypeAdapter[AnyRow] = TypeAdapter(Row)


@dataclass(frozen=True, slots=True)
class Results:
    """All rows of a file."""

    sessions: tuple[Session, ...] = ()
    runs: tuple[Run, ...] = ()
    requests: tuple[HttpRequest, ...] = ()
    race_answers: tuple[RaceAnswer, ...] = ()
    fleets: tuple[Fleet, ...] = ()

    @property
    def done(self) -> frozenset[tuple[Cell, int]]:
        """Cells with their repeats."""
        return frozenset((run.cell, run.repeat) for run in self.runs)


def append_row(path: Path, row: AnyRow) -> None:
    """Add a line; it is on the disk when this returns. An interrupted line before it is cut off first."""
    append_rows(path, [row])


def append_rows(path: Path, rows: Sequence[AnyRow]) -> None:
    """As append_row, for several."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            if whole < size:
                file.truncate(whole)
        file.write(b"".join(_ROW.dump_json(row) + b"\n" for row in rows))
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
    requests: list[HttpRequest] = []
    race_answers: list[RaceAnswer] = []
    fleets: list[Fleet] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = _ROW.validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}, line {number} is no row of measurements: {place}: {first['msg']}") from None
        if isinstance(row, Session):
            sessions.append(row)
        elif isinstance(row, Run):
            runs.append(row)
        elif isinstance(row, HttpRequest):
            requests.append(row)
        elif isinstance(row, Fleet):
            fleets.append(row)
        else:
            race_answers.append(row)
    return Results(tuple(sessions), tuple(runs), tuple(requests), tuple(race_answers), tuple(fleets))
