"""A device that compiles, as far as the engine can tell: every shape is known before, and none may come later."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from torch import Tensor

from replicas.devices.cpu import CpuBackend
from replicas.runner import model_runner
from replicas.runner.speculative_step import StepOutputs, speculative_step


class CompilingBackend(CpuBackend):
    """The CPU, that claims to compile each program."""

    attends_in_place = False
    compiles = True


def signature(inputs: Any) -> Any:
    """All that decides which program a compiler makes: shapes and types of tensors, and every other value."""
    if isinstance(inputs, Tensor):
        return tuple(inputs.shape), inputs.dtype
    if is_dataclass(inputs):
        return tuple(signature(getattr(inputs, field.name)) for field in fields(inputs))
    return inputs


@contextmanager
def recorded_signatures() -> Generator[set[Any]]:
    """Signatures of the inputs with which device programs are called meanwhile."""
    seen: set[Any] = set()

    def recording(target: Any, cache: Any, drafter: Any, inputs: Any, k: int) -> StepOutputs:
        seen.add((signature(inputs), k))
        return speculative_step(target, cache, drafter, inputs, k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_runner, "speculative_step", recording)
        yield seen
