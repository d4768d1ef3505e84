"""Ranks of XLA: one process a NeuronCore. Imported only where torch_xla is."""

from typing import Any

from torch import Tensor
from torch_xla import runtime  # pyright: ignore[reportMissingImports]
from torch_xla.core import xla_model  # pyright: ignore[reportMissingImports]

from replicas.errors import ConfigError


class XlaCollectives:
    """In-graph collectives over all processes of XLA's world, which are the model's ranks."""

    def __init__(self, size: int) -> None:
        """Raises ConfigError if XLA's world is not `size`: started wrongly, it answers alone and is silently wrong."""
        self.size: int = runtime.world_size()
        self.rank: int = runtime.global_ordinal()
        if self.size != size:
            raise ConfigError(f"tensor_parallel_size is {size}, but XLA's world has {self.size} processes")

    def sum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, xla_model.REDUCE_SUM)

    def maximum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, xla_model.REDUCE_MAX)

    def minimum(self, tensor: Tensor) -> Tensor:
        return self._reduced(tensor, xla_model.REDUCE_MIN)

    def gather(self, tensor: Tensor) -> Tensor:
        return xla_model.all_gather(tensor, dim=1)

    def _reduced(self, tensor: Tensor, operation: Any) -> Tensor:
        # All ranks are one group. Without naming it, older runtimes take the devices of one process.
        return xla_model.all_reduce(operation, tensor, groups=[list(range(self.size))])
