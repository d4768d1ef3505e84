"""Whether ranks that run elsewhere are alive: each tells so by itself, whatever it computes or compiles meanwhile."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

BEATS = 10
"""Signs of life in the time after which a rank without one is given up."""
ORPHAN_STATUS = 70
"""EX_SOFTWARE of sysexits.h."""


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What a rank tells rank 0 now and then."""


class Teller:
    """Sends what the threads of a rank have to tell, one after another."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        """`send` raises OSError when nobody listens any more."""
        self._send = send
        self._lock = threading.Lock()

    def tell(self, news: object) -> None:
        """Raises OSError when nobody listens any more."""
        with self._lock:
            self._send(news)

    def give_signs(self, limit_s: float) -> None:
        """From now on, on a thread of its own: signs of life for a listener who waits `limit_s` for them.

        When nobody listens any more the process ends at once: its other threads may wait for rank 0 for ever.
        """
        threading.Thread(target=self._give_signs, args=(limit_s / BEATS,), name="signs of life", daemon=True).start()

    def _give_signs(self, period_s: float) -> None:
        while True:
            time.sleep(period_s)
            try:
                self.tell(SignOfLife())
            except OSError:
                os._exit(ORPHAN_STATUS)


class Silences:
    """How long each rank has been silent while this process listened."""

    def __init__(self, ranks: Iterable[int], limit_s: float) -> None:
        self.period_s = limit_s / BEATS
        """How long to listen at once."""
        self._limit_s = limit_s
        self._silent_s = dict.fromkeys(ranks, 0.0)

    def listened(self, seconds: float) -> None:
        """`seconds` have passed in one attempt to hear something.

        Of a long attempt one period counts: this process, or the whole machine, was stopped and heard nobody.
        """
        for rank in self._silent_s:
            self._silent_s[rank] += min(seconds, self.period_s)

    def heard(self, rank: int) -> None:
        """`rank` gave a sign."""
        self._silent_s[rank] = 0.0

    def lost(self) -> int | None:
        """The rank that has been silent for longest, if that is too long."""
        rank = max(self._silent_s, key=self._silent_s.__getitem__)
        return rank if self._silent_s[rank] > self._limit_s else None
