"""A load that makes replicas come and go: one user, more by steps, all of them for a while, one again."""

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Ramp:
    """How many users there are, and when."""

    peak: int
    """Users at the top."""
    steps: int
    """From one user to the top, equally high."""
    step_s: float
    """Between two of them."""
    hold_s: float
    """At the top."""
    quiet_s: float
    """With one user, before and after."""

    def users(self, seconds: float) -> int | None:
        """At this time; None: it is over."""
        rising = [1 + round((self.peak - 1) * step / self.steps) for step in range(1, self.steps)]
        levels = [1, *rising, self.peak, 1]
        ends = accumulate([self.quiet_s, *[self.step_s] * len(rising), self.hold_s, self.quiet_s])
        return next((users for users, end in zip(levels, ends, strict=True) if seconds < end), None)
