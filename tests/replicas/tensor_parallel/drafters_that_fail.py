"""Drafters for ranks in other processes, which import this file by name: they fail on one rank alone."""

import os
import signal
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from replicas.devices.device_backend import DeviceState
from replicas.drafters.drafter import Drafter, ProposeInput
from replicas.drafters.registry import DrafterContext, build_ngram

FATAL_TOKEN = 77
"""The last rank fails in a step that runs this token."""
BUSY_SECONDS = 3.0


class FailingDrafter:
    """Prompt lookup, until the token comes to the last rank."""

    method = "ngram"
    tapped_layers: tuple[int, ...] = ()
    max_positions: int | None = None

    def __init__(self, context: DrafterContext, fail: Callable[[], None]) -> None:
        self._inner, self._is_last, self._fail = build_ngram(context), _is_last(context), fail

    @property
    def states(self) -> Sequence[DeviceState]:
        return self._inner.states

    def propose(self, inputs: ProposeInput, num_speculative_tokens: int) -> Tensor:
        if self._is_last and bool((inputs.token_ids == FATAL_TOKEN).any()):
            self._fail()
        return self._inner.propose(inputs, num_speculative_tokens)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        self._inner.copy_blocks(copies)


def _is_last(context: DrafterContext) -> bool:
    return context.backend.collectives.rank == context.backend.collectives.size - 1


def build_raising(context: DrafterContext) -> Drafter:
    """Raises on the last rank."""

    def fail() -> None:
        raise ArithmeticError("this core has lost a bit")

    return FailingDrafter(context, fail)


def build_dying(context: DrafterContext) -> Drafter:
    """Kills the process of the last rank."""
    return FailingDrafter(context, lambda: os.kill(os.getpid(), signal.SIGKILL))


def build_stopping(context: DrafterContext) -> Drafter:
    """Stops the process of the last rank, which stays."""
    return FailingDrafter(context, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def build_busy(context: DrafterContext) -> Drafter:
    """Keeps the last rank's interpreter busy for BUSY_SECONDS, as building a large program does."""

    def work() -> None:
        end = time.monotonic() + BUSY_SECONDS
        while time.monotonic() < end:
            pass

    return FailingDrafter(context, work)


def build_refusing(context: DrafterContext) -> Drafter:
    """Cannot be built on the last rank."""
    if _is_last(context):
        raise ValueError("no room on this core")
    return build_ngram(context)
