"""The command that writes a schedule."""

import json
from pathlib import Path

import pytest

from benchmarks.results import append_row
from benchmarks.write_k_schedule import main
from serve_app.k_schedule import load_k_schedule
from tests.benchmarks.synthetic_machine import SESSION, Machine


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "toy-cpu.jsonl"
    append_row(path, SESSION)
    for run in Machine().sweep([0, 1, 2], [1, 4], repeats=2).runs:
        append_row(path, run)
    return path


def test_serving_reads_what_it_writes(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(rows)]) == 0
    path = Path("configs/k_schedules/toy-cpu.yaml")
    assert capsys.readouterr().out.startswith(f"{path}: K = 2 from batch 1")
    written = load_k_schedule(path)
    assert written.k_of(1) == written.best_fixed_k == 2
    assert set(written.step_ms) == {1, 4}
    assert written.provenance["machine"] == "synthetic"
    assert written.provenance["commits"] == "c0ffee"
    assert written.provenance["config_hash"] == "hash"


def test_vllm_s_key_is_printed_and_nothing_is_written(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(rows), "--vllm", "--max-num-seqs", "32", "--out", str(tmp_path / "s.yaml")]) == 0
    ranges = json.loads(capsys.readouterr().out)["num_speculative_tokens_per_batch_size"]
    assert ranges[0][0] == 1
    assert ranges[-1][1] == 32
    assert not (tmp_path / "s.yaml").exists()


def test_no_rows_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.jsonl")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
