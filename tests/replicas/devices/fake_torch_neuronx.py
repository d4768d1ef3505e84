"""torch_neuronx.trace as its documents describe it, on the CPU: records the operators once, then plays them back.

What the module's Python did beside tensor operations is gone in the playback, as it is on a NeuronCore. Aliased outputs
replace the parameters they belong to and are not returned.
"""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn


class FakeTraced(nn.Module):
    """A recording with parameters of its own, `states` those that the aliases named."""

    def __init__(self, recording: Callable[..., Sequence[Tensor]], states: Sequence[Tensor], num_returned: int) -> None:
        super().__init__()
        self.states = nn.ParameterList([nn.Parameter(state.clone(), requires_grad=False) for state in states])
        self.core: int | None = None
        self._recording = recording
        self._num_returned = num_returned

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What the recording returns for `tensors`, without the aliased ones."""
        with torch.no_grad():
            outputs = self._recording(*[state.data for state in self.states], *tensors)
            for state, output in zip(self.states, outputs[self._num_returned :], strict=True):
                state.data.copy_(output)
        return tuple(outputs[: self._num_returned])


class FakeTorchNeuronx(ModuleType):
    """The module; `traced` are all that were made."""

    def __init__(self) -> None:
        super().__init__("torch_neuronx")
        self.traced: list[FakeTraced] = []

    def trace(
        self,
        func: nn.Module,
        example_inputs: tuple[object, ...],
        *_: Any,
        input_output_aliases: Mapping[Tensor, int] | None = None,
        compiler_args: Sequence[str] | str | None = None,
        inline_weights_to_neff: bool = True,
    ) -> FakeTraced:
        """Record `func`. Raises ValueError for inputs that are no tensors and KeyError for unknown states."""
        if not all(isinstance(tensor, Tensor) for tensor in example_inputs):
            raise ValueError("example inputs must be tensors")
        names = {id(parameter): name for name, parameter in func.named_parameters()}
        aliases = sorted((index, names[id(state)], state) for state, index in (input_output_aliases or {}).items())
        states = [state.data for _, _, state in aliases]

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            for (_, name, _), tensor in zip(aliases, tensors, strict=False):
                owner, _, own_name = name.rpartition(".")
                func.get_submodule(owner)._parameters[own_name] = tensor  # pyright: ignore[reportArgumentType]
            return func(*tensors[len(aliases) :])

        recording: Any = torch.jit.trace(function, (*states, *example_inputs), check_trace=False)
        outputs = recording(*[state.clone() for state in states], *example_inputs)
        num_returned = len(outputs) - len(aliases)
        if [index for index, _, _ in aliases] != list(range(num_returned, len(outputs))):
            raise ValueError("this stand-in knows aliases of the last outputs alone")
        self.traced.append(FakeTraced(recording, states, num_returned))
        return self.traced[-1]

    def move_trace_to_device(self, trace: FakeTraced, device_id: int) -> None:
        """The states of `trace` lie on core `device_id` from now on."""
        trace.core = device_id
