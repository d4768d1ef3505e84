"""Faults that must end in one clear sentence."""

from collections.abc import Callable

import pytest

from replicas.errors import CheckpointError
from replicas.models.source import resolve_model


def checkpoint_error(fails: Callable[[], object]) -> str:
    """The one sentence that `fails` ends with."""
    with pytest.raises(CheckpointError) as caught:
        fails()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def unresolved(model: str) -> str:
    """The one sentence that resolving the source `model` ends with."""
    return checkpoint_error(lambda: resolve_model(model))
