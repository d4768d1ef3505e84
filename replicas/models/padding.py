"""Sizes that a device wants rounded up, and how weights are padded so that results stay those of the checkpoint."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PaddedSize:
    """A dimension of `blocks` pieces, each of `size` elements in the checkpoint and of `padded` on the device.

    Pieces that lie side by side are padded one by one: three states of 2880 become 3 x (2880 + 192), not 8640 + 576
    (first seed, "Weight Loading and Padding"). Padding is zero in weights, hence in every state.
    """

    size: int
    padded: int
    blocks: int = 1

    @classmethod
    def rounded_up(cls, size: int, multiple: int) -> "PaddedSize":
        """`size`, padded to the next multiple of `multiple`."""
        return cls(size, -(-size // multiple) * multiple)

    def times(self, blocks: int) -> "PaddedSize":
        """`blocks` of this size side by side."""
        return PaddedSize(self.size, self.padded, blocks)

    @property
    def stored(self) -> int:
        """Elements in the checkpoint."""
        return self.size * self.blocks

    def pad(self, tensor: Tensor, dim: int) -> Tensor:
        """`tensor` with zeros after each piece of dimension `dim`."""
        if self.padded == self.size:
            return tensor
        pieces = tensor.unflatten(dim, (self.blocks, self.size))
        shape = list(pieces.shape)
        shape[dim + 1] = self.padded - self.size
        return torch.cat([pieces, pieces.new_zeros(shape)], dim + 1).flatten(dim, dim + 1)

    def norm_weight(self, weight: Tensor) -> Tensor:
        """The padded `weight` of an RMS norm, scaled because the mean of squares counts the zeros too."""
        if self.padded == self.size:
            return weight
        return weight.float() * (self.size / self.padded) ** 0.5

    def epsilon(self, epsilon: float) -> float:
        """`epsilon` of an RMS norm over this size, to go with `norm_weight`."""
        return epsilon * self.size / self.padded
