"""XLA: NeuronCores through torch-neuronx, and XLA's own CPU client as their stand-in. XLA-CPU tested, Neuron untested.

Every program runs as one lazily traced graph: Python builds it again at each call, XLA finds it compiled, and one
execute answers (docs/decisions/0013-xla-programs.md).
"""

import importlib
import os
from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices.collectives import Collectives, SingleRank
from replicas.devices.device_backend import DeviceState, Elementwise, Executor, Inputs, Linear, Outputs
from replicas.devices.structures import tensors_of, with_tensors
from replicas.errors import ConfigError

Platform = Literal["neuron", "xla-cpu"]
PJRT_DEVICES: dict[Platform, str] = {"neuron": "NEURON", "xla-cpu": "CPU"}
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class XlaBackend:
    """Weights, activations and KV in one dtype, as static graphs of whole steps."""

    attends_in_place = False
    compiles = True
    deterministic = False

    def __init__(
        self, platform: Platform, dtype: str, hidden_multiple: int = 1, vocab_multiple: int = 1, ranks: int = 1
    ) -> None:
        """Raises ConfigError for a dtype that the device lacks, and where its runtime is not installed."""
        if dtype not in DTYPES:
            raise ConfigError(f"dtype is {dtype!r}; on device {platform!r} it may be {' or '.join(DTYPES)}")
        self.name: str = platform
        self.activation_dtype = DTYPES[dtype]
        self.torch_device = start_runtime(platform)
        self.hidden_multiple = hidden_multiple
        self.vocab_multiple = vocab_multiple
        self.silu: Elementwise = functional.silu
        self.collectives: Collectives = SingleRank() if ranks == 1 else in_graph(self.torch_device)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return placed_linear(self.place, weight, bias)

    def place(self, tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            tensor = tensor.to(self.activation_dtype)
        return tensor.to(self.torch_device)

    def executor(self, states: Sequence[DeviceState]) -> Executor:
        return LazyExecutor(self.torch_device)


def placed_linear(place: Callable[[Tensor], Tensor], weight: Tensor, bias: Tensor | None) -> Linear:
    """The product with `weight` and `bias`, where `place` puts them."""
    weight = place(weight)
    bias = None if bias is None else place(bias)
    return lambda rows: functional.linear(rows, weight, bias)


class LazyExecutor:
    """One graph a call, compiled when its like was not seen before. In-place updates of states alias their buffers."""

    def __init__(self, device: torch.device) -> None:
        import torch_xla  # pyright: ignore[reportMissingImports]

        self._device = device
        # What placed weights and zeroed caches is no part of a program.
        torch_xla.sync(wait=True)

    def __call__(self, key: Hashable, program: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
        """See Executor. Raises RuntimeError for a program that reads a tensor's value or leaves the device."""
        import torch_xla  # pyright: ignore[reportMissingImports]
        from torch_xla.core import xla_model  # pyright: ignore[reportMissingImports]

        # Tensors of inference mode cannot be updated in place in a graph.
        with torch.inference_mode(False), torch.no_grad():
            placed: list[Tensor] = xla_model.send_cpu_data_to_device(tensors_of(inputs), self._device)
            on_device = with_tensors(inputs, iter(placed))
            with torch_xla.compile(full_graph=True, name="step"):
                outputs = program(on_device)
            return with_tensors(outputs, iter([tensor.cpu() for tensor in tensors_of(outputs)]))


def in_graph(device: torch.device) -> Collectives:
    """Collectives over all of the runtime's processes, as operations of the graphs."""
    from replicas.devices.xla_collectives import XlaCollectives

    return XlaCollectives(device)


def start_runtime(platform: Platform) -> torch.device:
    """The device of this process. Raises ConfigError where `platform` has no runtime here."""
    import_runtime(platform)
    import torch_xla  # pyright: ignore[reportMissingImports]
    from torch_xla import runtime as xla_runtime  # pyright: ignore[reportMissingImports]

    found: Any = xla_runtime.device_type()
    if found != PJRT_DEVICES[platform]:
        raise ConfigError(f"device is {platform!r}, but this process already runs XLA on {found}")
    return torch_xla.device()


def import_runtime(platform: Platform) -> ModuleType:
    """The package that drives `platform`, nothing started yet. Raises ConfigError where it is not installed."""
    try:
        if platform == "neuron":
            return importlib.import_module("torch_neuronx")
        os.environ["PJRT_DEVICE"] = PJRT_DEVICES[platform]
        return importlib.import_module("torch_xla")
    except ImportError as error:
        package = "torch-neuronx" if platform == "neuron" else "torch_xla"
        raise ConfigError(
            f"device is {platform!r}, which needs {package} 2.9 beside torch 2.9; this Python has torch "
            f"{torch.__version__} and cannot import it: {error}"
        ) from error
