"""What the ranks of one model do together: the only way that a rank's program hears of the others."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from replicas.errors import EyrieError


class CollectiveError(EyrieError):
    """Another rank went away, or did not answer in time: the cause is there, not here."""


class Collectives(Protocol):
    """One rank's side. All ranks make the same calls in the same order, and all get the same bits."""

    @property
    def size(self) -> int:
        """Ranks of the model."""
        ...

    @property
    def rank(self) -> int:
        """Number of this rank, from 0 on. For loading: programs take it as a tensor, so that all ranks share them."""
        ...

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every rank's `tensor`. Raises CollectiveError, as the others do."""
        ...

    def maximum(self, tensor: Tensor) -> Tensor:
        """The largest, element by element."""
        ...

    def minimum(self, tensor: Tensor) -> Tensor:
        """The smallest, element by element."""
        ...

    def gather(self, tensor: Tensor) -> Tensor:
        """[rows, columns] of every rank side by side: [rows, size * columns], rank 0 first."""
        ...


@dataclass(frozen=True, slots=True)
class SingleRank:
    """A model that is not split: everything is the identity."""

    size: int = 1
    rank: int = 0

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def maximum(self, tensor: Tensor) -> Tensor:
        return tensor

    def minimum(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor
