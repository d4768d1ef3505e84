"""The command, on this machine and on a faked inf2."""

from pathlib import Path

import pytest
import yaml

from replicas.config import EngineConfig
from replicas.config_file import NamedEngine
from replicas.devices import doctor
from tests.reference.neuron_environment import inf2


@pytest.fixture
def config(tiny_folder: Path, tiny_head: Path, tmp_path: Path) -> Path:
    head = {"method": "eagle3", "model": str(tiny_head), "num_speculative_tokens": 3}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"model": str(tiny_folder), "max_model_len": 128, "speculative_config": head}))
    return path


def test_this_machine_can_run_the_cpu_path_and_lacks_neuron(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([str(config)]) == 0
    told = capsys.readouterr().out
    assert "ok       AVX2 and FBGEMM are there" in told
    assert "error    torch-neuronx is not installed" in told
    assert "tiny on cpu\n  ok       " in told
    assert "KV for" in told


def test_the_exit_status_is_that_of_the_device_asked_for(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    assert doctor.main(["--device", "neuron"]) == 1
    assert doctor.main([str(config), "--device", "neuron"]) == 1
    assert "tiny on neuron\n  ok       " in capsys.readouterr().out


def test_a_config_s_ranks_and_programs_are_asked_of_the_machine(tiny_folder: Path) -> None:
    config = EngineConfig(
        model=str(tiny_folder), device="neuron", dtype="bfloat16", tensor_parallel_size=2, max_model_len=128
    )
    engines = [NamedEngine("one", config)]
    sections = {section.title: section.findings for section in doctor.diagnose(inf2(), engines, None)}
    assert {finding.level for findings in sections.values() for finding in findings} == {"ok"}
    assert "2 NeuronCores asked, 0, 1 visible" in [
        finding.sentence for finding in sections["NeuronCores (XLA-CPU tested, Neuron untested)"]
    ]
    two = doctor.diagnose(inf2(), [*engines, NamedEngine("two", config)], None)
    [sentence] = [f.sentence for section in two for f in section.findings if f.level == "error"]
    assert sentence.startswith("tensor_parallel_size asks for 4 NeuronCores, and 2 are visible")


def test_what_cannot_fit_is_told_with_the_numbers(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(keys | {"num_blocks": 10**9}))
    assert doctor.main([str(config)]) == 1
    assert "(weights 0.00, drafter 0.00" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_finding(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("model: /no/such/folder\n")
    assert doctor.main([str(config)]) == 1
    assert "error    model '/no/such/folder' is not known" in capsys.readouterr().out


def test_a_wrong_config_is_told_and_nothing_probed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("model: m\nmax_num_seq: 3\n")
    assert doctor.main([str(path)]) == 1
    [first, second] = capsys.readouterr().err.splitlines()
    assert first == f"{path} is wrong:"
    allowed = second.removeprefix("max_num_seq: unknown key; allowed: ").split(", ")
    assert set(allowed) == set(EngineConfig.model_fields)
