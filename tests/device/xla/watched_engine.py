"""An engine on XLA, and what XLA did for it."""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch_xla
from torch_xla.core import xla_model
from torch_xla.debug import metrics

from replicas.devices.device_backend import DeviceState, Executor
from replicas.devices.structures import tensors_of
from replicas.runner.model_runner import ModelRunner

WIDE = re.compile(r"\b[sfu]64\[\d.*")
"""64-bit arrays. Scalars of that width are constants, which every compiler folds."""
FORBIDDEN = re.compile(r"\bsort\(.*|\bwhile\(.*|\bcustom-call\(.*|\brng.*")


@dataclass(frozen=True)
class Counts:
    """XLA's counters so far."""

    compiled: int
    executed: int
    read: int
    """Tensors that came to the host."""
    fallbacks: tuple[str, ...]
    """Operators that ran on the host."""

    @staticmethod
    def now() -> "Counts":
        def count(metric: str) -> int:
            data: Any = metrics.metric_data(metric)
            return data[0] if data else 0

        # An execution is counted at its end, by a thread of its own: its results may have been read before.
        xla_model.wait_device_ops()
        fallbacks = [name for name in metrics.counter_names() if name.startswith("aten::")]
        return Counts(
            count("CompileTime"), count("ExecuteTime"), count("TransferFromDeviceTime"), tuple(sorted(fallbacks))
        )


@dataclass
class WatchedExecutor:
    """Runs programs as `executor` does, and keeps their HLO and where the states lie after each call."""

    executor: Executor
    states: tuple[DeviceState, ...]
    calls: list[Hashable] = field(default_factory=list)
    hlo: dict[Hashable, str] = field(default_factory=dict)
    pointers: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def __call__(self, key: Hashable, program: Callable[[Any], Any], inputs: Any) -> Any:
        def watched(inputs: Any) -> Any:
            outputs = program(inputs)
            if key not in self.hlo:
                tensors = [*tensors_of(outputs), *(state.tensor for state in self.states)]
                self.hlo[key] = torch_xla._XLAC._get_xla_tensors_hlo(tensors)
            return outputs

        outputs = self.executor(key, watched, inputs)
        self.calls.append(key)
        for index, state in enumerate(self.states):
            self.pointers[index].add(torch_xla._XLAC._unsafe_buffer_pointer(state.tensor))
        return outputs

    def forbidden(self) -> set[str]:
        """Operations of the programs so far that Neuron's compiler lacks or that cost it dearly."""
        lines = [line.strip() for text in self.hlo.values() for line in text.splitlines()]
        return {line for line in lines if WIDE.search(line) or FORBIDDEN.search(line)}


def watch(runner: ModelRunner) -> WatchedExecutor:
    """Put a WatchedExecutor into `runner`."""
    states = (runner._cache, *(runner._drafter.states if runner._drafter else ()))
    watched = WatchedExecutor(runner._executor, states)
    runner._executor = watched
    return watched
