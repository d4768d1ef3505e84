"""Programs on XLA's CPU client, which stands in for NeuronCores, in an environment of their own: `make test-xla`."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.reference.hand_built_engine import TinyTarget
from tests.reference.tiny_checkpoints import write_head, write_target

HAS_XLA = find_spec("torch_xla") is not None
# torch_xla 2.9 and the project's own torch do not load together: elsewhere these tests do not exist.
collect_ignore_glob = [] if HAS_XLA else ["test_*.py"]
if HAS_XLA:
    # Half a second to compile a step instead of several.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    write_target(folder)
    return folder


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    write_head(folder)
    return folder


@pytest.fixture(scope="session")
def on_cpu(target_folder: Path) -> TinyTarget:
    """The target on the CPU backend: eager, float32."""
    return TinyTarget(target_folder, max_model_len=64)


@pytest.fixture(scope="session")
def on_xla(target_folder: Path) -> TinyTarget:
    """The same on XLA's CPU client."""
    from replicas.devices.xla_neuron import XlaBackend

    return TinyTarget(target_folder, max_model_len=64, backend=XlaBackend("xla-cpu", "float32"))
