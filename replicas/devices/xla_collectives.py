"""Ranks of XLA: one process a NeuronCore. Imported only where torch_xla is."""

from typing import Any

import torch
from torch import Tensor
from torch_xla import runtime  # pyright: ignore[reportMissingImports]
from torch_xla.core import xla_model  # pyright: ignore[reportMissingImports]


class XlaCollectives:
    """In-graph collectives over all processes of XLA's world, which are the model's ranks."""

    def __init__(self, device: torch.device) -> None:
        self.size: int = runtime.world_size()
        self.rank: int = runtime.global_ordinal()
        # Of one element and no scalar: XLA builds scalars 0 and 1 into the graph.
        self._rank = torch.tensor([self.rank], dtype=torch.int32).to(device)

    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, xla_model.REDUCE_SUM)

    def maximum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, xla_model.REDUCE_MAX)

    def minimum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, xla_model.REDUCE_MIN)

    def gather(self, tensor: Tensor) -> Tensor:
        # xla_model.all_gather writes the rank into the graph wherever it has no operation of its own for it, so that
        # every rank would compile another one.
        ranks = torch.arange(self.size, dtype=torch.int32, device=tensor.device)
        mine = (ranks == self._rank)[None, :, None]
        return self.sum(torch.where(mine, tensor[:, None], torch.zeros_like(tensor)[:, None])).flatten(1)

    def _reduced(self, tensor: Tensor, operation: Any) -> Tensor:
        # All ranks are one group. Without naming it, older runtimes take the devices of one process.
        total = xla_model.all_reduce(operation, tensor, groups=[list(range(self.size))])
        # index_select dies of an index that comes straight from a collective; compilers drop the product.
        return total * 1
