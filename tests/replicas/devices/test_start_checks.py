"""Every fault of a faked inf2 is one sentence with its remedy, and nothing else is said to be wrong."""

from dataclasses import replace
from typing import Any

import pytest

from replicas.devices.environment import CompileCache, Environment, parse_devices
from replicas.devices.start_checks import Finding, cpu_findings, neuron_findings, parse_cores, require
from replicas.errors import ConfigError
from tests.reference.neuron_environment import inf2, neuron_ls

URL = "NEURON_COMPILE_CACHE_URL"
VISIBLE = "NEURON_RT_VISIBLE_CORES"


def complaints(findings: list[Finding], level: str = "error") -> list[str]:
    assert not any("\n" in finding.sentence for finding in findings)
    return [finding.sentence for finding in findings if finding.level == level]


def with_visible(setting: str, chips: int = 1) -> Environment:
    environment = inf2(devices=parse_devices(neuron_ls(chips))[0])
    return replace(environment, variables={**environment.variables, VISIBLE: setting})


def test_a_right_inf2_has_no_complaint() -> None:
    findings = neuron_findings(inf2(), cores=2, num_programs=100)
    assert {finding.level for finding in findings} == {"ok"}
    sentences = [finding.sentence for finding in findings]
    assert "inf2.xlarge, 2 NeuronCores-v2" in sentences
    assert "2 NeuronCores on 1 chips, 32.00 GiB" in sentences
    assert "2 NeuronCores asked, 0, 1 visible" in sentences
    require(findings)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"product": "m5.large"},
            "this machine calls itself 'm5.large' and is no inf2 or trn1: launch one of inf2.xlarge, inf2.8xlarge, "
            "inf2.24xlarge, inf2.48xlarge, trn1.2xlarge, trn1.32xlarge, trn1n.32xlarge",
        ),
        (
            {"product": "trn2.48xlarge"},
            "trn2.48xlarge has later NeuronCores, which PyTorch 2.10 and TorchNeuron serve: take an inf2 or a trn1",
        ),
        ({"python": (3, 13)}, "Python is 3.13: make the environment with 3.10, 3.11 or 3.12"),
        (
            {"packages": {**inf2().packages, "torch": "2.13.0+cpu"}},
            "torch is 2.13.0+cpu, NeuronCore-v2 needs 2.9.*: pip install 'torch==2.9.*' into an environment of its own",
        ),
        (
            {"packages": {n: v for n, v in inf2().packages.items() if n != "torch-neuronx"}},
            "torch-neuronx is not installed: pip install 'eyrie[neuron]' from Neuron's index",
        ),
        (
            {"packages": {n: v for n, v in inf2().packages.items() if n != "neuronx-cc"}},
            "neuronx-cc is not installed: pip install neuronx-cc from Neuron's index",
        ),
        (
            {"cache": CompileCache("/cache", problem="[Errno 13] Permission denied: '/cache'")},
            f"{URL}=/cache cannot be written ([Errno 13] Permission denied: '/cache'): "
            "name another folder, or s3://bucket/prefix",
        ),
        ({"cache": CompileCache("s3:///eyrie")}, f"{URL}=s3:///eyrie names no bucket: s3://bucket/prefix"),
        (
            {"cache": CompileCache("/cache", free_bytes=2**29)},
            f"/cache has 0.50 GiB free, 100 programs may take 1.17: free some, or set {URL} to a larger disk",
        ),
    ],
)
def test_a_fault_is_one_sentence_with_the_remedy(changes: dict[str, Any], sentence: str) -> None:
    findings = neuron_findings(inf2(**changes), cores=2, num_programs=100)
    assert complaints(findings) == [sentence]
    with pytest.raises(ConfigError) as caught:
        require(findings)
    assert str(caught.value) == sentence


def test_without_neuron_ls_neither_cores_nor_chips_are_known() -> None:
    findings = neuron_findings(inf2(devices=(), tool_problem="neuron-ls is not installed"), cores=2)
    assert complaints(findings) == [
        "neuron-ls is not installed, so NeuronCores cannot be counted: install aws-neuronx-dkms, "
        "aws-neuronx-runtime-lib and aws-neuronx-tools of Neuron 2.33 or before",
        f"tensor_parallel_size asks for 2 NeuronCores, and 0 are visible: lower it, widen {VISIBLE}, "
        "or take a larger instance",
    ]


def test_without_the_driver_there_are_no_devices() -> None:
    first, _ = complaints(neuron_findings(inf2(devices=()), cores=1))
    assert first == "neuron-ls finds no Neuron device: load the driver (modprobe neuron)"


@pytest.mark.parametrize(
    ("setting", "cores", "chips", "level", "part"),
    [
        ("0", 2, 1, "error", f"asks for 2 NeuronCores, and 1 are visible ({VISIBLE}=0): lower it"),
        ("", 1, 1, "error", f"asks for 1 NeuronCores, and 0 are visible ({VISIBLE}=): lower it"),
        ("2,3", 2, 1, "error", f"{VISIBLE}=2,3 names NeuronCore 2, but there are 0, 1: name only those"),
        ("all", 1, 1, "error", f"{VISIBLE} is 'all': give numbers with commas between them, such as 0,1"),
        ("0-3", 4, 2, "warning", f"{VISIBLE}=0-3 is a range, with which ray start fails: write the numbers"),
    ],
)
def test_visible_cores_against_cores_asked(setting: str, cores: int, chips: int, level: str, part: str) -> None:
    [sentence] = complaints(neuron_findings(with_visible(setting, chips), cores), level)
    assert part in sentence


@pytest.mark.parametrize(
    ("setting", "cores"), [("0", {0}), ("0,1", {0, 1}), ("2-4", {2, 3, 4}), ("0,4-5,7", {0, 4, 5, 7}), ("", set())]
)
def test_core_lists_and_ranges(setting: str, cores: set[int]) -> None:
    assert parse_cores(setting) == cores


def test_a_chip_in_use_is_told_with_who_uses_it() -> None:
    bench = {"pid": 268911, "command": "neuron-bench exec --run-as-cc-neff"}
    devices, _ = parse_devices(neuron_ls(2, chip1=[bench]))
    taken = complaints(neuron_findings(inf2(devices=devices), cores=2))
    assert taken == [
        "chip 1 (NeuronCores 2, 3) is in use by process 268911 (neuron-bench exec --run-as-cc-neff): "
        f"end it, or choose other cores by {VISIBLE}"
    ]
    others = {**inf2().variables, VISIBLE: "0,1"}
    assert complaints(neuron_findings(inf2(devices=devices, variables=others), cores=2)) == []
    # Of its two cores one may be free: neuron-ls does not say.
    half = inf2(devices=devices, variables={**inf2().variables, VISIBLE: "1,2"})
    assert len(complaints(neuron_findings(half, cores=2), "warning")) == 1


def test_the_process_itself_and_tools_that_watch_take_no_core() -> None:
    watchers = [{"pid": 4711, "command": "python"}, {"pid": 9, "command": "/opt/aws/neuron/bin/neuron-top"}]
    devices, _ = parse_devices(neuron_ls(1, chip0=watchers))
    assert complaints(neuron_findings(inf2(devices=devices), cores=2)) == []


def test_a_cache_on_this_node_alone_is_a_warning() -> None:
    [sentence] = complaints(neuron_findings(inf2(cache=CompileCache(None)), cores=2), "warning")
    assert sentence.startswith(f"{URL} is not set")


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"cpu_flags": frozenset({"sse2"})}, "no AVX2"), ({"quantized_engines": {"qnnpack"}}, "no FBGEMM")],
)
def test_fp16_weights_need_avx2_and_fbgemm(changes: dict[str, Any], missing: str) -> None:
    environment = inf2(**changes)
    [sentence] = complaints(cpu_findings(environment, "float16"))
    assert missing in sentence
    assert "set dtype to float32" in sentence
    assert complaints(cpu_findings(environment, "float32")) == []


def test_the_cpu_s_other_findings() -> None:
    findings = cpu_findings(inf2(), "float16", num_threads=4)
    assert {finding.level for finding in findings} == {"ok"}
    assert "4 threads on 4 cores" in [finding.sentence for finding in findings]
    [threads] = complaints(cpu_findings(inf2(), "float16", num_threads=8), "warning")
    assert threads == "num_threads is 8, but this process may use 4 cores: lower it, or leave it out"
    [spinning] = complaints(cpu_findings(inf2(variables={})), "warning")
    assert "set it to 40000" in spinning
