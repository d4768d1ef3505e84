"""Ranks of a CPU: processes of one machine that talk through gloo."""

import socket
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, ProcessGroupGloo, ReduceOp, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from replicas.devices.collectives import CollectiveError

ADDRESS = "127.0.0.1"
TIMEOUT = timedelta(seconds=300)
"""A rank that is alive and silent for so long counts as lost; one that has ended is noticed at once."""


def meeting_place() -> TCPStore:
    """Where ranks find each other, for rank 0 to keep; its `port` is for the others."""
    return TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)


def found_at(port: int) -> TCPStore:
    """The meeting place of rank 0, for another rank."""
    return TCPStore(ADDRESS, port, is_master=False, timeout=TIMEOUT)


def free_port() -> int:
    """A port of this machine that nobody listens on, for a runtime that opens its own meeting place."""
    with socket.socket() as found:
        found.bind((ADDRESS, 0))
        return found.getsockname()[1]


class GlooCollectives:
    """One rank of a process group of its own: none is global, so that a process may hold several engines."""

    def __init__(self, store: TCPStore, rank: int, size: int) -> None:
        """Returns when all ranks are there. Raises CollectiveError if some die."""
        # torch has no public way to a group that is not global.
        gloo: Any = ProcessGroupGloo
        options: Any = gloo._Options()
        # Ranks share a machine: the loopback interface, whatever the host's name resolves to.
        options._devices = [gloo.create_device(hostname=ADDRESS)]
        options._timeout = TIMEOUT
        try:
            self._group: Any = gloo(store, rank, size, options)
        except RuntimeError as error:
            raise CollectiveError(f"rank {rank} of {size} did not meet the others: {error}") from error
        self.size: int = self._group.size()
        self.rank: int = self._group.rank()

    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, ReduceOp.SUM)

    def maximum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, ReduceOp.MAX)

    def minimum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, ReduceOp.MIN)

    def gather(self, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._wait(lambda: self._group.allgather([parts], [tensor.contiguous()]))
        return torch.cat(parts, 1)

    def _reduced(self, tensor: Tensor, operation: Any) -> Tensor:
        options = AllreduceOptions()
        options.reduceOp = operation
        # gloo reduces in place; a program's tensors stay what they are.
        total = tensor.clone(memory_format=torch.contiguous_format)
        self._wait(lambda: self._group.allreduce([total], options))
        return total

    def _wait(self, start: Any) -> None:
        try:
            start().wait()
        except RuntimeError as error:
            raise CollectiveError(f"rank {self.rank} of {self.size} lost another rank: {error}") from error
