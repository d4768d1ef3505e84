"""Ranks of one model as threads of this process, which exchange tensors in a list: sharding without processes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from replicas.devices.collectives import Collectives

Result = TypeVar("Result")
SECONDS = 120
"""A rank that waits so long for the others has lost them."""


@dataclass
class Meeting:
    """What the ranks share."""

    size: int
    slots: list[Tensor] = field(default_factory=list[Tensor])
    elements: dict[str, int] = field(default_factory=dict[str, int])
    """Of all tensors that one rank gave, by operation."""

    def __post_init__(self) -> None:
        self.slots = [torch.empty(0)] * self.size
        self.barrier = threading.Barrier(self.size)


@dataclass
class ThreadCollectives:
    """One rank's side. Adds in the order of ranks, so that all of them get the same bits."""

    meeting: Meeting
    rank: int

    @property
    def size(self) -> int:
        return self.meeting.size

    def _exchanged(self, name: str, tensor: Tensor) -> list[Tensor]:
        meeting = self.meeting
        if self.rank == 0:
            meeting.elements[name] = meeting.elements.get(name, 0) + tensor.numel()
        meeting.slots[self.rank] = tensor.clone()
        meeting.barrier.wait(SECONDS)
        found = list(meeting.slots)
        meeting.barrier.wait(SECONDS)
        return found

    def sum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._exchanged("sum", tensor)).sum(0)

    def maximum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._exchanged("maximum", tensor)).amax(0)

    def minimum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._exchanged("minimum", tensor)).amin(0)

    def gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(self._exchanged("gather", tensor), 1)


def on_ranks(size: int, body: Callable[[Collectives], Result]) -> tuple[list[Result], Meeting]:
    """What `body` returns on each of `size` ranks, and what they exchanged; raises what a rank raises."""
    meeting = Meeting(size)

    def rank(index: int) -> Result:
        try:
            return body(ThreadCollectives(meeting, index))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(rank, index) for index in range(size)]
        failures = [future.exception() for future in futures]
    for failure in failures:
        if failure is not None and not isinstance(failure, threading.BrokenBarrierError):
            raise failure
    return [future.result() for future in futures], meeting
