"""How long one request may take, from its first byte to the last of its answer."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from serve_app.errors import RequestTimeoutError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """Counts from `begin`, in the event loop's time. The body, the queue, generation and a slow reader all count."""

    limit_s: float | None
    """None: for ever."""
    begin: float

    @staticmethod
    def of(limit_s: float | None) -> "Deadline":
        """Beginning now."""
        return Deadline(limit_s, asyncio.get_running_loop().time())

    @property
    def remaining_s(self) -> float | None:
        """At least 0; None: no limit."""
        if self.limit_s is None:
            return None
        return max(0.0, self.begin + self.limit_s - asyncio.get_running_loop().time())

    def error(self) -> RequestTimeoutError:
        """What a request that is too late is told."""
        return RequestTimeoutError(f"the request took longer than {self.limit_s:g} s and was stopped")

    async def within(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises RequestTimeoutError."""
        try:
            return await asyncio.wait_for(work, self.remaining_s)
        except asyncio.TimeoutError:
            raise self.error() from None
