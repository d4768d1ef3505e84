"""How long drafting takes, seen from inside the step."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from replicas.drafters.drafter import Drafter, ProposeInput
from replicas.drafters.registry import DrafterContext


@dataclass(slots=True)
class DraftClock:
    """Seconds spent in `propose` so far.

    They are the drafter's where the device works synchronously, as the CPU does. Where it does not, `propose` only
    queues work, and draft and verify cost can be told apart by the fit alone.
    """

    seconds: float = 0.0


class TimedDrafter:
    """A drafter whose proposals run against a clock."""

    def __init__(self, drafter: Drafter, clock: DraftClock) -> None:
        self.method = drafter.method
        self.tapped_layers = drafter.tapped_layers
        self.max_positions = drafter.max_positions
        self.states = drafter.states
        self._drafter = drafter
        self._clock = clock

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        """See Drafter."""
        begin = time.perf_counter()
        drafts = self._drafter.propose(inputs, num_speculative_tokens)
        self._clock.seconds += time.perf_counter() - begin
        return drafts

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """See Drafter."""
        self._drafter.copy_blocks(copies)


def timed(
    drafters: Mapping[str, Callable[[DrafterContext], Drafter]], clock: DraftClock
) -> dict[str, Callable[[DrafterContext], Drafter]]:
    """`drafters`, all against `clock`."""

    def against_clock(build: Callable[[DrafterContext], Drafter]) -> Callable[[DrafterContext], Drafter]:
        return lambda context: TimedDrafter(build(context), clock)

    return {method: against_clock(build) for method, build in drafters.items()}
