"""What a device must offer to the models and the runner: the only door between them and a runtime."""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from replicas.devices.collectives import Collectives

Linear = Callable[[Tensor], Tensor]
"""[rows, in] -> [rows, out], in the activation dtype."""

Elementwise = Callable[[Tensor], Tensor]
Inputs = TypeVar("Inputs")
Outputs = TypeVar("Outputs")


class DeviceState(Protocol):
    """A tensor on the device that programs update in place and that outlives them: a KV cache."""

    tensor: Tensor


class Executor(Protocol):
    """Runs programs, which are functions of tensors of fixed shapes and nothing else besides the device states."""

    def __call__(self, key: Hashable, program: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
        """Outputs of `program` for `inputs`, both on the host, as frozen dataclasses of tensors.

        Calls with the same `key` must agree in the program, and in the shapes and the other fields of the inputs.
        """
        ...


class DeviceBackend(Protocol):
    """A device on which one model runs."""

    name: str
    torch_device: torch.device
    activation_dtype: torch.dtype
    attends_in_place: bool
    """True where contiguous blocks may be attended as a view; static graphs want the gather."""
    compiles: bool
    """True where a program costs time before its first run: all of them run at warm-up then, and none other later."""
    deterministic: bool
    """A row's bits never depend on what runs beside it: `linear` and `silu` see to theirs, attention adds in order."""
    silu: Elementwise
    hidden_multiple: int
    """Models pad their hidden size to a multiple of this."""
    vocab_multiple: int
    """Models pad the rows of embedding and head to a multiple of this."""
    collectives: Collectives
    """This rank among those that share the model."""

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Place `weight` [out, in] and `bias` [out] on the device and return the product with them."""
        ...

    def place(self, tensor: Tensor) -> Tensor:
        """`tensor` on the device; floating point becomes the activation dtype."""
        ...

    def executor(self, states: Sequence[DeviceState]) -> Executor:
        """What runs the programs that read and update `states`."""
        ...
