"""Several processes that train one head: each on its own batches, their weights averaged now and then (local SGD)."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, distributed

from replicas.training.head_module import DraftHead


class Group(Protocol):
    """What is needed of a torch.distributed process group."""

    def allreduce(self, tensors: list[Tensor], /) -> distributed.Work:
        """Begin to sum each tensor over all processes, in place."""
        ...


@dataclass(frozen=True, slots=True)
class Peers:
    """The processes of a run; `group` is None where there is only this one."""

    rank: int
    processes: int
    group: Group | None

    @torch.no_grad()
    def average(self, head: DraftHead, seconds: float) -> float:
        """Give every process the mean of all their weights; returns the mean of their `seconds`, to go on by."""
        if self.group is None:
            return seconds
        clock = torch.tensor([seconds])
        flat = torch.cat([clock, *(parameter.flatten() for parameter in head.parameters())])
        self.group.allreduce([flat]).wait()
        clock, *means = (flat / self.processes).split([1, *(parameter.numel() for parameter in head.parameters())])
        for parameter, mean in zip(head.parameters(), means, strict=True):
            parameter.copy_(mean.view_as(parameter))
        return float(clock)


def join() -> Peers:
    """The other processes where `torchrun` started this one, else none."""
    if not distributed.is_torchelastic_launched():
        return Peers(0, 1, None)
    distributed.init_process_group("gloo")
    return Peers(distributed.get_rank(), distributed.get_world_size(), distributed.group.WORLD)
