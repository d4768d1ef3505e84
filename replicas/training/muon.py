"""Muon (Jordan et al., 2024): momentum, orthogonalised, for matrices. In float32: torch's own runs in bfloat16, which CPUs
without AVX-512 do slowly."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration."""
ITERATIONS = 5
BLOCK = 192
"""Rows orthogonalised together: the iteration's cost grows with them, and slices of a matrix do as well here."""


class Muon(torch.optim.Optimizer):
    """Updates have the root mean square of Adam's (0.2), so that learning rate and decay carry over."""

    def __init__(self, parameters: Iterable[Parameter], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update; closures are not supported."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                average: Tensor = state["momentum"]
                average.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalised(parameter.grad.lerp(average, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])


def orthogonalised(matrix: Tensor) -> Tensor:
    """Slices of `matrix` along its shorter side, each with its singular values near 1, scaled to a root mean square of 0.2."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalised(matrix.T).T
    first, second, third = COEFFICIENTS
    slices: list[Tensor] = []
    for piece in matrix.split(BLOCK):
        piece = piece / (piece.norm() + 1e-12)
        for _ in range(ITERATIONS):
            gram = piece @ piece.T
            piece = first * piece + torch.addmm(gram, gram, gram, beta=second, alpha=third) @ piece
        slices.append(piece * (0.2 * matrix.shape[1] ** 0.5))
    return torch.cat(slices)
