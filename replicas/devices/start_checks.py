"""Checks before anything is loaded or compiled: pure functions of the probed environment, one sentence a finding."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from replicas.devices.environment import CACHE_VARIABLE, VISIBLE_VARIABLE, Environment
from replicas.devices.memory_plan import gib
from replicas.devices.neuron_hardware import NEURON_CORES, PROGRAM_BYTES
from replicas.errors import ConfigError

Level = Literal["ok", "warning", "error"]
FIRST_PYTHON, LAST_PYTHON = (3, 10), (3, 12)
NEURON_LINE = "2.9."
"""The PyTorch NeuronX line that serves NeuronCore-v2; its three packages share the version."""
LINE_PACKAGES = ("torch", "torch-xla", "torch-neuronx")
LATER_FAMILIES = ("trn2", "trn3")
WATCHING_TOOLS = ("neuron-ls", "neuron-top", "neuron-monitor")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. An error's sentence ends with the remedy."""

    level: Level
    subject: str
    sentence: str


def require(findings: Iterable[Finding]) -> None:
    """Raise ConfigError, one line an error, if there is one."""
    errors = [finding.sentence for finding in findings if finding.level == "error"]
    if errors:
        raise ConfigError("\n".join(errors))


def cpu_findings(environment: Environment, dtype: str = "float16", num_threads: int | None = None) -> list[Finding]:
    """Whether an engine can run on this CPU, and well."""
    return [
        _python(environment),
        _packed_weights(environment, dtype),
        _threads(environment, num_threads),
        _spinning(environment),
        Finding("ok", "memory", f"{gib(environment.available_memory)} GiB of memory are free"),
    ]


def neuron_findings(environment: Environment, cores: int, num_programs: int = 0) -> list[Finding]:
    """Whether an engine on `cores` NeuronCores can start here, and keep `num_programs` programs."""
    return [
        _instance(environment),
        _python(environment),
        *_packages(environment),
        _devices(environment),
        _visible_cores(environment, cores),
        *_taken_cores(environment),
        _compile_cache(environment, num_programs),
    ]


def _python(environment: Environment) -> Finding:
    version = ".".join(map(str, environment.python))
    if FIRST_PYTHON <= environment.python <= LAST_PYTHON:
        return Finding("ok", "Python", f"Python {version}")
    return Finding("error", "Python", f"Python is {version}: make the environment with 3.10, 3.11 or 3.12")


def _packed_weights(environment: Environment, dtype: str) -> Finding:
    has_avx2, has_fbgemm = "avx2" in environment.cpu_flags, "fbgemm" in environment.quantized_engines
    if has_avx2 and has_fbgemm:
        return Finding("ok", "fp16 weights", "AVX2 and FBGEMM are there: fp16 weights are packed")
    missing = "no AVX2" if not has_avx2 else "no FBGEMM in this build of torch"
    level: Level = "error" if dtype == "float16" else "warning"
    sentence = f"dtype float16 needs FBGEMM on AVX2, and this {environment.architecture} has {missing}"
    return Finding(level, "fp16 weights", f"{sentence}: set dtype to float32, which reads twice the memory a step")


def _threads(environment: Environment, num_threads: int | None) -> Finding:
    cpus = environment.usable_cpus
    if num_threads is not None and num_threads > cpus:
        sentence = f"num_threads is {num_threads}, but this process may use {cpus} cores: lower it, or leave it out"
        return Finding("warning", "threads", sentence)
    return Finding("ok", "threads", f"{num_threads or cpus} threads on {cpus} cores")


def _spinning(environment: Environment) -> Finding:
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environment.variables.keys():
        return Finding("ok", "OpenMP", "OpenMP's waiting is set")
    sentence = (
        "GOMP_SPINCOUNT is not set, so OpenMP's threads spin while they wait and starve their neighbours: "
        "set it to 40000, as replicas under Ray have it (docs/decisions/0007-environment-of-a-cpu-replica.md)"
    )
    return Finding("warning", "OpenMP", sentence)


def _instance(environment: Environment) -> Finding:
    product = environment.product
    if product in NEURON_CORES:
        return Finding("ok", "instance", f"{product}, {NEURON_CORES[product]} NeuronCores-v2")
    name = f"calls itself {product!r}" if product else "does not say what it is"
    if product.startswith(LATER_FAMILIES):
        sentence = f"{product} has later NeuronCores, which PyTorch 2.10 and TorchNeuron serve: take an inf2 or a trn1"
        return Finding("error", "instance", sentence)
    return Finding("error", "instance", f"this machine {name} and is no inf2 or trn1: launch one of {_instances()}")


def _instances() -> str:
    return ", ".join(NEURON_CORES)


def _packages(environment: Environment) -> Iterator[Finding]:
    for name in LINE_PACKAGES:
        version = environment.packages.get(name)
        if version is None:
            yield Finding("error", name, f"{name} is not installed: pip install 'eyrie[neuron]' from Neuron's index")
        elif not version.startswith(NEURON_LINE):
            remedy = f"pip install '{name}=={NEURON_LINE}*' into an environment of its own"
            yield Finding("error", name, f"{name} is {version}, NeuronCore-v2 needs {NEURON_LINE}*: {remedy}")
        else:
            yield Finding("ok", name, f"{name} {version}")
    version = environment.packages.get("neuronx-cc")
    if version is None:
        yield Finding("error", "compiler", "neuronx-cc is not installed: pip install neuronx-cc from Neuron's index")
    else:
        yield Finding("ok", "compiler", f"neuronx-cc {version}")


def _devices(environment: Environment) -> Finding:
    if environment.tool_problem:
        remedy = "install aws-neuronx-dkms, aws-neuronx-runtime-lib and aws-neuronx-tools of Neuron 2.33 or before"
        return Finding("error", "devices", f"{environment.tool_problem}, so NeuronCores cannot be counted: {remedy}")
    count = sum(device.nc_count for device in environment.devices)
    if not count:
        return Finding("error", "devices", "neuron-ls finds no Neuron device: load the driver (modprobe neuron)")
    memory = sum(device.memory_size for device in environment.devices)
    return Finding("ok", "devices", f"{count} NeuronCores on {len(environment.devices)} chips, {gib(memory)} GiB")


def _visible_cores(environment: Environment, cores: int) -> Finding:
    present = {core for device in environment.devices for core in device.core_ids}
    setting = environment.variables.get(VISIBLE_VARIABLE)
    try:
        visible = present if setting is None else parse_cores(setting)
    except ValueError:
        sentence = f"{VISIBLE_VARIABLE} is {setting!r}: give numbers with commas between them, such as 0,1"
        return Finding("error", "cores", sentence)
    absent = sorted(visible - present)
    if absent and present:
        sentence = f"{VISIBLE_VARIABLE}={setting} names NeuronCore {absent[0]}, but there are {_listed(present)}"
        return Finding("error", "cores", f"{sentence}: name only those")
    if len(visible) < cores:
        shown = f" ({VISIBLE_VARIABLE}={setting})" if setting is not None else ""
        sentence = f"tensor_parallel_size asks for {cores} NeuronCores, and {len(visible)} are visible{shown}"
        return Finding("error", "cores", f"{sentence}: lower it, widen {VISIBLE_VARIABLE}, or take a larger instance")
    if setting is not None and "-" in setting:
        sentence = f"{VISIBLE_VARIABLE}={setting} is a range, with which ray start fails: write the numbers with commas"
        return Finding("warning", "cores", sentence)
    return Finding("ok", "cores", f"{cores} NeuronCores asked, {_listed(visible)} visible")


def parse_cores(setting: str) -> set[int]:
    """Core numbers of `0,1`, `0-3` or a mixture. Raises ValueError."""
    cores: set[int] = set()
    for part in filter(None, setting.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _taken_cores(environment: Environment) -> Iterator[Finding]:
    setting = environment.variables.get(VISIBLE_VARIABLE)
    try:
        wanted = None if setting is None else parse_cores(setting)
    except ValueError:
        return
    for device in environment.devices:
        if wanted is not None and not wanted & set(device.core_ids):
            continue
        for process in device.neuron_processes:
            if process.pid == environment.own_pid or process.command.split(" ")[0].endswith(WATCHING_TOOLS):
                continue
            command = process.command[:60] or "unknown command"
            sentence = f"chip {device.neuron_device} (NeuronCores {_listed(device.core_ids)}) is in use by process"
            remedy = f"end it, or choose other cores by {VISIBLE_VARIABLE}"
            # Of a chip that two processes share, neuron-ls does not say who has which core.
            level: Level = "error" if wanted is None or set(device.core_ids) <= wanted else "warning"
            yield Finding(level, "taken cores", f"{sentence} {process.pid} ({command}): {remedy}")


def _compile_cache(environment: Environment, num_programs: int) -> Finding:
    cache, needed = environment.cache, num_programs * PROGRAM_BYTES
    if cache.url is None:
        sentence = f"{CACHE_VARIABLE} is not set, so compiled programs stay on this node and may go with it"
        return Finding("warning", "compile cache", f"{sentence}: set it to a folder that lasts, or s3://bucket/prefix")
    if cache.url.startswith("s3://"):
        if not cache.url.removeprefix("s3://").partition("/")[0]:
            return Finding(
                "error", "compile cache", f"{CACHE_VARIABLE}={cache.url} names no bucket: s3://bucket/prefix"
            )
        return Finding("ok", "compile cache", f"programs are kept at {cache.url}")
    if cache.problem:
        sentence = f"{CACHE_VARIABLE}={cache.url} cannot be written ({cache.problem})"
        return Finding("error", "compile cache", f"{sentence}: name another folder, or s3://bucket/prefix")
    if cache.free_bytes is not None and cache.free_bytes < needed:
        sentence = f"{cache.url} has {gib(cache.free_bytes)} GiB free, {num_programs} programs may take {gib(needed)}"
        return Finding("error", "compile cache", f"{sentence}: free some, or set {CACHE_VARIABLE} to a larger disk")
    return Finding("ok", "compile cache", f"programs are kept in {cache.url}")


def _listed(cores: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(cores))) or "none"
