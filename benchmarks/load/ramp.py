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

    @property
    def levels(self) -> tuple[tuple[float, int], ...]:
        """(Seconds, users from then on); the last has none: it is over."""
        rising = [1 + round((self.peak - 1) * step / self.steps) for step in range(1, self.steps)]
        lengths = [self.quiet_s, *[self.step_s] * len(rising), self.hold_s, self.quiet_s]
        return tuple(zip(accumulate(lengths, initial=0.0), [1, *rising, self.peak, 1, 0], strict=True))

    def users(self, seconds: float) -> int | None:
        """At this time; None: it is over."""
        return next(users for begin, users in reversed(self.levels) if seconds >= begin) or None
