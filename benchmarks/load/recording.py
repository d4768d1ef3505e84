"""The rows of one load while it runs. Needs no locust."""

import hashlib
import json
import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import cycle
from pathlib import Path
from typing import Literal
from uuid import uuid4

import httpx

from benchmarks.load.chat_client import ChatSettings, RequestError, ask
from benchmarks.provenance import provenance
from benchmarks.results import AnyRow, HttpRequest, Session, append_rows
from benchmarks.workloads import Prompt
from replicas.errors import ConfigError

Arrivals = Literal["closed", "poisson"]
UNFINISHED = "not finished when the load ended"


def first_model(client: httpx.Client) -> str:
    """The first model that the server names. Raises ConfigError if it does not."""
    try:
        return str(client.get("v1/models").raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{client.base_url}: its /v1/models names none ({error!r}); name one with --model") from error


def load_session(url: str, arrivals: Arrivals, rate: float | None, settings: ChatSettings) -> Session:
    """The load that begins now. What the server is made of is not known here, and not guessed."""
    load = json.dumps({"url": url, "arrivals": arrivals, "rate": rate, **asdict(settings)})
    source = {**provenance(), "command": shlex.join(["locust", *sys.argv[1:]]), "load": load}
    return Session(
        uuid4().hex[:8],
        datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        hashlib.sha256(load.encode()).hexdigest()[:12],
        settings.model,
        "unknown",
        None,
        source,
        "http",
    )


@dataclass(slots=True)
class Recording:
    """Asks, and keeps what came back. Rows go to the disk when the load has ended: writing would disturb it."""

    client: httpx.Client
    settings: ChatSettings
    prompts: Sequence[Prompt]
    arrivals: Arrivals
    session: Session
    seed: int = 0
    """Of the order of prompts."""
    rows: list[AnyRow] = field(default_factory=list[AnyRow])
    _begin: float = field(default_factory=time.perf_counter)
    _next_prompt: Callable[[], Prompt] = field(init=False)

    def __post_init__(self) -> None:
        shuffled = random.Random(self.seed).sample(self.prompts, len(self.prompts))
        self._next_prompt = cycle(shuffled).__next__
        self.rows.append(self.session)

    def one(self, users: int) -> HttpRequest:
        """The next prompt, asked. A failure is a row too, and so is a request that was given up meanwhile."""
        prompt = self._next_prompt()
        arrival = round(time.perf_counter() - self._begin, 6)
        served, failure = None, UNFINISHED
        try:
            served, failure = ask(self.client, self.settings, prompt.text), None
        except RequestError as error:
            failure = str(error)
        finally:
            row = HttpRequest(
                self.session.id,
                arrival,
                self.arrivals,
                users,
                self.settings.stream,
                prompt.category,
                served,
                failure,
            )
            self.rows.append(row)
        return row

    def write(self, path: Path) -> None:
        """Append the rows that are not there yet."""
        if self.rows:
            rows, self.rows = self.rows, []
            append_rows(path, rows)
