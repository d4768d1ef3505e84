"""Neuron's tool, as a script that does what its documents say."""

import json
import os
import sys
from pathlib import Path

import pytest

from replicas.devices.neuron_compile import CacheCount, NeuronParallelCompile, count_cache
from replicas.errors import ConfigError

TOOL = """#!{python}
import json, os, pathlib, subprocess, sys
assert sys.argv[1] == "--num_parallel"
root = pathlib.Path(os.environ["NEURON_COMPILE_CACHE_URL"]) / "neuronxcc-2.28.7631.0+abc"
status = subprocess.run(sys.argv[3:], env={{**os.environ, "NEURON_EXTRACT_GRAPHS_ONLY": "1"}}).returncode
if status:
    sys.exit(status)
for module in sorted(root.glob("MODULE_*")):
    (module / "model.neff").write_bytes(b"neff")
    (module / "model.done").touch()
(root / "call.json").write_text(json.dumps(sys.argv[1:]))
"""
TRACE = """
import os, pathlib
assert os.environ["NEURON_EXTRACT_GRAPHS_ONLY"] == "1"
for number in range(3):
    module = pathlib.Path(os.environ["NEURON_COMPILE_CACHE_URL"]) / "neuronxcc-2.28.7631.0+abc" / f"MODULE_{number}+f"
    module.mkdir(parents=True, exist_ok=True)
    (module / "model.hlo_module.pb").write_bytes(b"hlo")
"""


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "neuron_parallel_compile"
    path.parent.mkdir()
    path.write_text(TOOL.format(python=sys.executable))
    path.chmod(0o755)
    return path.parent


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(folder))
    return folder


def test_every_traced_graph_is_compiled_and_counted(tool: Path, cache: Path) -> None:
    seen: list[CacheCount] = []
    NeuronParallelCompile(str(cache), str(tool)).fill([sys.executable, "-c", TRACE], 7, seen.append)
    assert seen[-1] == CacheCount(3, 3)
    [call] = cache.glob("*/call.json")
    assert json.loads(call.read_text()) == ["--num_parallel", "7", sys.executable, "-c", TRACE]
    assert count_cache(cache) == CacheCount(3, 3)


def test_a_warm_cache_has_nothing_new(tool: Path, cache: Path) -> None:
    compiler = NeuronParallelCompile(str(cache), str(tool))
    seen: list[CacheCount] = []
    for _ in range(2):
        compiler.fill([sys.executable, "-c", TRACE], 1, seen.append)
    assert seen[-1] == CacheCount(0, 0)


def test_a_run_that_fails_says_where_the_rest_is(tool: Path, cache: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        NeuronParallelCompile(str(cache), str(tool)).fill([sys.executable, "-c", "exit(9)"], 1, lambda _: None)
    assert "ended with status 9" in str(caught.value)
    assert str(cache) in str(caught.value)


def test_in_a_bucket_nothing_is_counted() -> None:
    assert count_cache(None) == CacheCount(0, 0)


def test_without_the_tool_the_remedy_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not installed: it comes with torch-neuronx, so pip install"):
        NeuronParallelCompile("s3://bucket/prefix", os.fspath(tmp_path))
