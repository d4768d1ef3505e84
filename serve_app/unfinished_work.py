"""What one router sent to each replica and has not seen the end of. Without Ray."""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass

ENDED_FIRST = 64
"""Requests remembered whose end was told before their begin."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Of one replica."""

    tokens: float
    requests: int
    peak_requests: int
    """The most there were in the last seconds: what the replica tells of itself is so old."""


class UnfinishedWork:
    """A ledger of tokens, by replica and request."""

    def __init__(self, peak_window_s: float) -> None:
        self._peak_window_s = peak_window_s
        self._tokens: dict[tuple[str, str], float] = {}
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._peaks: dict[str, deque[tuple[float, int]]] = {}
        """(Seconds, requests) by replica, at each begin."""
        self._ended_first: deque[tuple[str, str]] = deque(maxlen=ENDED_FIRST)

    def begin(self, replica: str, request: str, tokens: float, now: float) -> None:
        """`replica` was sent a request that brings so many tokens, at `now` (seconds of any clock)."""
        key = replica, request
        if key in self._ended_first:
            self._ended_first.remove(key)
            return
        self._totals[replica] += tokens - self._tokens.get(key, 0.0)
        self._counts[replica] += key not in self._tokens
        self._tokens[key] = tokens
        peaks = self._peaks.setdefault(replica, deque())
        # What is older or not larger can never be the peak again.
        while peaks and peaks[-1][1] <= self._counts[replica]:
            peaks.pop()
        peaks.append((now, self._counts[replica]))

    def end(self, replica: str, request: str) -> None:
        """It has ended, however."""
        key = replica, request
        tokens = self._tokens.pop(key, None)
        if tokens is None:
            self._ended_first.append(key)
            return
        self._counts[replica] -= 1
        self._totals[replica] = self._totals[replica] - tokens if self._counts[replica] else 0.0

    def of(self, replica: str, now: float) -> Unfinished:
        """What `replica` has before it."""
        peaks = self._peaks.get(replica, deque())
        while peaks and peaks[0][0] < now - self._peak_window_s:
            peaks.popleft()
        count = self._counts[replica]
        return Unfinished(self._totals[replica], count, max(count, peaks[0][1] if peaks else 0))

    def keep(self, replicas: set[str]) -> None:
        """Forget all that is of none of `replicas`."""
        for replica in [name for name in self._peaks if name not in replicas]:
            del self._peaks[replica]
            self._totals.pop(replica, None)
            del self._counts[replica]
        for key in [key for key in self._tokens if key[0] not in replicas]:
            del self._tokens[key]
