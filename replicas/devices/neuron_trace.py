"""Neuron's fast path: every program traced once by torch_neuronx.trace, then run without Python between its operators.

Written to its documents and tested against a stand-in of its signature: Neuron untested. The documents describe no way
for two traced programs to share weights, so each holds its own: for models that are small beside a core's memory.
Why the lazy way is the default: docs/decisions/0013-xla-programs.md.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from replicas.devices.collectives import Collectives, SingleRank
from replicas.devices.device_backend import DeviceState, Elementwise, Executor, Inputs, Linear, Outputs
from replicas.devices.structures import tensors_of, with_tensors
from replicas.devices.xla_neuron import DTYPES, import_runtime, placed_linear

COMPILER_ARGUMENTS = ["--auto-cast=none"]
"""Compute in the dtype that the config names; by itself the compiler multiplies float32 matrices in bfloat16."""


class NeuronTraceBackend:
    """Weights and states wait on the CPU; tracing a program takes them to the core."""

    attends_in_place = False
    compiles = True
    deterministic = False

    def __init__(self, dtype: str, hidden_multiple: int = 1, vocab_multiple: int = 1) -> None:
        """Raises ConfigError where torch-neuronx is not installed."""
        import_runtime("neuron")
        self.name = "neuron"
        self.activation_dtype = DTYPES[dtype]
        self.silu: Elementwise = functional.silu
        self.collectives: Collectives = SingleRank()
        self.torch_device = torch.device("cpu")
        self.hidden_multiple = hidden_multiple
        self.vocab_multiple = vocab_multiple
        self._weights: list[Tensor] = []

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        return placed_linear(self.place, weight, bias)

    def place(self, tensor: Tensor) -> Tensor:
        dtype = self.activation_dtype if tensor.is_floating_point() else tensor.dtype
        # A copy: the object stands for the weight in every program, and nobody else may hold it.
        self._weights.append(tensor.to(dtype, copy=True))
        return self._weights[-1]

    def executor(self, states: Sequence[DeviceState]) -> Executor:
        return TraceExecutor(states, self._weights)


@dataclass(frozen=True, slots=True)
class _Traced:
    module: Any
    outputs: Any
    """As the program returned them while it was traced; only the structure counts."""


class TraceExecutor:
    """One TorchScript module a key, made at its first call; all share the states of the first."""

    def __init__(self, states: Sequence[DeviceState], weights: Sequence[Tensor], core: int = 0) -> None:
        self._states = states
        self._weights = weights
        self._core = core
        self._traced: dict[Hashable, _Traced] = {}

    def __call__(self, key: Hashable, program: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
        """See Executor."""
        if key not in self._traced:
            self._traced[key] = self._trace(program, inputs)
        traced = self._traced[key]
        outputs: Outputs = traced.outputs
        results: Sequence[Tensor] = traced.module(*tensors_of(inputs))
        return with_tensors(outputs, iter([tensor.cpu() for tensor in results[: len(tensors_of(outputs))]]))

    def _trace(self, program: Callable[[Inputs], Outputs], inputs: Inputs) -> _Traced:
        import torch_neuronx  # pyright: ignore[reportMissingImports]

        own = [state.tensor for state in self._states]
        with torch.inference_mode(False), torch.no_grad():
            function = ProgramModule(program, inputs, self._states, self._weights)
            # The states' new values come after the outputs; the rule about their order is ProgramModule.forward's.
            first = len(tensors_of(function.trial()))
            aliases = {parameter: first + index for index, parameter in enumerate(function.states)}
            module: Any = torch_neuronx.trace(
                function,
                tuple(tensors_of(inputs)),
                input_output_aliases=aliases,
                compiler_args=COMPILER_ARGUMENTS,
                inline_weights_to_neff=False,
            )
        for state, tensor in zip(self._states, own, strict=True):
            state.tensor = tensor
        if self._traced:
            shared = next(iter(self._traced.values())).module.states._parameters
            module.states._parameters.update(shared)
        else:
            torch_neuronx.move_trace_to_device(module, self._core)
        return _Traced(module, function.outputs)


class ProgramModule(nn.Module):
    """A program as what torch_neuronx.trace wants: tensors in, tensors out; weights and states are parameters."""

    def __init__(
        self,
        program: Callable[[Inputs], Outputs],
        inputs: Inputs,
        states: Sequence[DeviceState],
        weights: Sequence[Tensor],
    ) -> None:
        super().__init__()
        self._program: Callable[[Any], Any] = program
        self._inputs = inputs
        self._bound_states = states
        self._bound_weights = weights
        self.weights = nn.ParameterList([nn.Parameter(tensor, requires_grad=False) for tensor in weights])
        self.states = nn.ParameterList([nn.Parameter(state.tensor, requires_grad=False) for state in states])
        self.outputs: Any = None

    def trial(self) -> Any:
        """The program's outputs, computed where the parameters are, here and now."""
        self(*tensors_of(self._inputs))
        return self.outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Outputs, then the states' new values. The states' parameters stay as they are: the aliases replace them."""
        with torch.inference_mode(False), torch.no_grad(), _Substitution(self._bound_weights, list(self.weights)):
            for state, parameter in zip(self._bound_states, self.states, strict=True):
                state.tensor = parameter.clone()
            self.outputs = self._program(with_tensors(self._inputs, iter(tensors)))
            return *tensors_of(self.outputs), *(state.tensor for state in self._bound_states)


class _Substitution(TorchFunctionMode):
    """Models hold their weights as tensors: in its context those stand for the parameters, which may lie elsewhere."""

    def __init__(self, bound: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self._parameters = {id(tensor): parameter for tensor, parameter in zip(bound, parameters, strict=True)}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        moved: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(Tensor, self._parameter_of, (args, kwargs or {}))
        return func(*moved[0], **moved[1])

    def _parameter_of(self, tensor: Tensor) -> Tensor:
        return self._parameters.get(id(tensor), tensor)
