"""All parts after each other, over the tiny random target."""

from pathlib import Path

import pytest

from benchmarks.measuring import UNFINISHED
from benchmarks.results import read_results
from benchmarks.sweep_to_report import main
from benchmarks.verify_k_schedule import SLOWER
from serve_app.k_schedule import load_k_schedule
from tests.benchmarks.tiny_sweep import write_sweep


def test_one_command_measures_chooses_verifies_and_reports(
    tmp_path: Path, tiny_folder: Path, tiny_head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sweep(tmp_path, tiny_folder, tiny_head, k=[0, 8], batch=[1], max_tokens=12, min_prompts=2, repeats=2)
    monkeypatch.chdir(tmp_path)
    assert main([str(path), "--minutes", "0"]) == UNFINISHED
    assert not Path("configs").exists()
    # A random head never pays, so K = 0 is chosen, and loses to itself at most by chance.
    assert main([str(path), "--price", "small=1"]) in (0, SLOWER)
    assert len(read_results(Path("results/sweeps/tiny-cpu.jsonl")).runs) == 4
    assert len(read_results(Path("results/verifications/tiny-cpu.jsonl")).runs) == 10
    assert load_k_schedule(Path("configs/k_schedules/tiny-cpu.yaml")).largest_k == 0
    report = Path("results/reports/tiny-cpu.md").read_text()
    assert "TPOT over K = 0 (99 %)" in report
    assert "small, $1 an hour" in report


def test_a_wrong_config_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.yaml")]) == 1
    assert capsys.readouterr().err.startswith("cannot read ")
