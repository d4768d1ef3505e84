"""The list of programs, and filling a cache through a fake of Neuron's tool."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from replicas import precompile
from replicas.config import EngineConfig
from replicas.config_file import read_engines
from replicas.devices.environment import CompileCache, Environment
from replicas.devices.neuron_compile import CacheCount
from replicas.engine_programs import compiled_programs
from tests.reference.neuron_environment import inf2


@pytest.fixture
def config(tiny_folder: Path, tiny_head: Path, tmp_path: Path) -> Path:
    """Batches 1, 2 and 3, chunks of 64, contexts of 32 and 512 tokens: coarse buckets."""
    head = {"method": "eagle3", "model": str(tiny_head), "num_speculative_tokens": 2}
    keys = {
        "model": str(tiny_folder),
        "device": "neuron",
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 64,
        "speculative_config": head | {"allowed_num_speculative_tokens": [2]},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


class Recorder:
    """Takes the place of the tool."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str], int]] = []
        self._url = ""

    def __call__(self, url: str) -> "Recorder":
        self._url = url
        return self

    def fill(self, command: Sequence[str], workers: int, progress: Callable[[CacheCount], None]) -> None:
        self.calls.append((self._url, list(command), workers))
        progress(CacheCount(3, 1))
        progress(CacheCount(14, 14))


def on(monkeypatch: pytest.MonkeyPatch, environment: Environment) -> None:
    monkeypatch.setattr(precompile, "probe", lambda: environment)


def test_the_list_names_each_program_and_counts_them(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert precompile.main([str(config), "--list"]) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    # Batches of 1, 2 and 3 with K 0 and 2, plain and with everything; prompts also with log-probabilities of their own.
    assert len(lines) == len(set(lines)) == 3 * 2 * 2 + 2 * 3
    assert lines[0] == "decode batch of    1  K  0  context    512  greedy"
    assert "decode batch of    3  K  2  context    512  filtered, biases, penalties, logprobs, masks" in lines
    everything = "filtered, biases, penalties, logprobs"
    assert f"prompt chunk of    64  K  2  context    512  {everything}, masks" in lines
    assert lines[-1] == f"prompt chunk of    64  K  2  context    512  {everything}, prompt logprobs, masks"
    assert total == "tiny: 18 programs; at 12 MiB each (assumed) 0.21 GiB in the cache and on every core"


def test_the_list_is_what_warm_up_runs_on_a_device_that_compiles() -> None:
    config = EngineConfig(model="m", device="neuron", dtype="bfloat16", max_model_len=4096, max_num_seqs=4)
    programs = compiled_programs(config)
    assert len(programs) == len(set(programs))
    assert not any(program.is_in_place for program in programs)
    assert {program.batch for program in programs if not program.is_prefill} == {1, 2, 4}
    assert {program.context_blocks * 16 for program in programs} == {512, 1024, 2048, 4096}
    # The same config on the CPU has three times as many shapes, and compiles none of them.
    fine = compiled_programs(config.model_copy(update={"device": "cpu"}))
    assert len(fine) > 3 * len(programs)


def test_the_cache_is_filled_by_a_run_of_every_program(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, inf2())
    tool = Recorder()
    assert precompile.main([str(config), "--workers", "5"], tool) == 0
    [(url, command, workers)] = tool.calls
    assert (url, workers) == ("s3://bucket/eyrie", 5)
    assert command[:3] == [sys.executable, "-m", "replicas.precompile"]
    assert command[3:] == [str(config), "--model", "tiny", "--device", "neuron", "--run-programs"]
    bars = capsys.readouterr().err
    assert "tiny: traced" in bars
    assert "14/18" in bars


def test_the_command_of_the_tool_runs_the_programs_of_an_engine(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As far as this machine goes: on its CPU.
    assert precompile.main([str(config), "--model", "tiny", "--device", "cpu", "--run-programs"]) == 0
    assert capsys.readouterr().out.startswith("tiny: ")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (inf2(product="m5.large"), "this machine calls itself 'm5.large' and is no inf2 or trn1"),
        (inf2(variables={}, cache=CompileCache(None)), "NEURON_COMPILE_CACHE_URL is not set: name the folder"),
    ],
)
def test_nothing_is_compiled_before_the_checks_pass(
    environment: Environment,
    sentence: str,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    on(monkeypatch, environment)
    tool = Recorder()
    assert precompile.main([str(config)], tool) == 1
    assert capsys.readouterr().err.startswith(sentence)
    assert tool.calls == []


def test_a_device_that_does_not_compile_has_nothing_to_do(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Recorder()
    assert precompile.main([str(config), "--device", "cpu"], tool) == 0
    assert capsys.readouterr().out.startswith("tiny: device 'cpu' compiles nothing")
    assert tool.calls == []


def test_an_unknown_model_is_told_with_those_that_there_are(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert precompile.main([str(config), "--model", "other", "--list"]) == 1
    assert capsys.readouterr().err == "no model is called 'other'; there are tiny\n"


def test_a_plain_engine_lists_half_as_many_decode_programs(config: Path) -> None:
    [engine] = read_engines(config)
    plain = engine.config.model_copy(update={"speculative_config": None})
    assert 2 * len(compiled_programs(plain)) == len(compiled_programs(engine.config))
