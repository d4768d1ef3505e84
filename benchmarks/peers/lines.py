"""What a race and its workers say to each other, a JSON object a line. Standard library alone: a worker runs in the
environment of a peer, which has nothing of ours.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ask:
    """An answer that is wanted: greedy, nothing kept of the one before."""

    prompt: list[int]
    """Token ids: peers have the same, whatever they make of a chat."""
    tokens: int
    """To generate, whatever they are: no token ends the answer."""
    mode: str = ""
    """One of the worker's ways to answer."""
    may_end: bool = False
    """The answer ends where the model ends it, or after `tokens`. Our own worker alone knows this."""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, as it came."""

    chunks: list[tuple[float, int]]
    """Seconds since the request, and tokens, of each."""
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker's first line: its model is loaded, and has answered once."""

    versions: dict[str, str]


class Peer(Protocol):
    """What a worker wraps."""

    @property
    def versions(self) -> dict[str, str]:
        """Of what makes its speed."""
        ...

    def answer(self, ask: Ask) -> Told:
        """Do as asked, and time it."""
        ...


def serve(load: Callable[[], Peer]) -> None:
    """Load a peer, say that it is ready, and answer until the input ends."""
    # Whatever libraries print, from C too, must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(what: Ready | Told) -> None:
        answers.write(json.dumps(asdict(what)) + "\n")
        answers.flush()

    peer = load()
    peer.answer(Ask([1, 2, 3, 4], 4))
    say(Ready(peer.versions))
    for line in sys.stdin:
        say(peer.answer(Ask(**json.loads(line))))
