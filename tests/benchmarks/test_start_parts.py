"""The parts of a start, of a config that holds a tiny model."""

import json
import time
from pathlib import Path

import pytest

from benchmarks.start_parts import main
from tests.benchmarks.tiny_sweep import write_sweep


def test_each_part_is_told_and_together_they_are_no_more_than_the_start(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(tmp_path, tiny_folder, None)
    begin = time.perf_counter()
    main([str(tmp_path / "deployment.yaml")])
    elapsed = time.perf_counter() - begin
    parts = json.loads(capsys.readouterr().out)
    assert list(parts) == ["imports_s", "engine_s", "warm_up_s"]
    assert 0 < parts["engine_s"] + parts["warm_up_s"] <= sum(parts.values()) < elapsed + 0.02
