"""What is probed, here and of a faked neuron-ls."""

import os
import sys
from pathlib import Path

import pytest

from replicas.devices.environment import parse_devices, probe, probe_cache, probe_devices
from tests.reference.neuron_environment import neuron_ls


def tool(folder: Path, body: str) -> str:
    """A neuron-ls that runs `body`; returns the search path."""
    path = folder / "neuron-ls"
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(0o755)
    return str(folder)


def test_this_machine() -> None:
    found = probe()
    assert found.python == sys.version_info[:2]
    assert found.packages["torch"]
    assert found.usable_cpus == len(os.sched_getaffinity(0))
    assert "fbgemm" in found.quantized_engines
    assert found.cpu_flags
    assert (found.devices, found.tool_problem) == ((), "neuron-ls is not installed")


def test_neuron_ls_is_asked_for_json(tmp_path: Path) -> None:
    path = tool(tmp_path, f"assert sys.argv[1:] == ['--json-output']\nprint({neuron_ls(2)!r})")
    devices, problem = probe_devices(path)
    assert problem == ""
    assert [device.core_ids for device in devices] == [(0, 1), (2, 3)]
    assert {device.memory_size for device in devices} == {32 * 2**30}


def test_older_tools_do_not_number_their_cores() -> None:
    # The format of 2023, as Ray's own tests have it.
    text = (
        '[{"neuron_device":1,"bdf":"00:1f.0","connected_to":null,"nc_count":2,"memory_size":34359738368,'
        '"neuron_processes":[]}]'
    )
    [device] = parse_devices(text)[0]
    assert device.core_ids == (2, 3)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("sys.exit('no driver')", "neuron-ls --json-output fails (no driver)"),
        ("sys.exit(3)", "neuron-ls --json-output fails (no reason given)"),
        ("print('{\"devices\": []}')", "neuron-ls prints another JSON than that of Neuron 2.33 ("),
        ("print('+----+')", "neuron-ls prints another JSON than that of Neuron 2.33 ("),
    ],
)
def test_a_neuron_ls_that_fails_says_why(tmp_path: Path, body: str, problem: str) -> None:
    devices, told = probe_devices(tool(tmp_path, body))
    assert devices == ()
    assert told.startswith(problem)


def test_a_cache_folder_is_made_and_tried(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "cache"
    found = probe_cache(str(folder))
    assert list(folder.iterdir()) == []
    assert found.problem == ""
    assert found.free_bytes is not None
    assert found.free_bytes > 0
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in probe_cache(str(tmp_path / "file" / "cache")).problem


def test_a_bucket_is_not_touched() -> None:
    found = probe_cache("s3://bucket/prefix")
    assert (found.url, found.problem, found.free_bytes) == ("s3://bucket/prefix", "", None)
