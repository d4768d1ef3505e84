"""Faults that must end in one clear sentence."""

from collections.abc import Callable

import pytest

from replicas.errors import CheckpointError


def checkpoint_error(fails: Callable[[], object]) -> str:
    """The one sentence that `fails` ends with."""
    with pytest.raises(CheckpointError) as caught:
        fails()
    assert "\n" not in str(caught.value)
    return str(caught.value)
