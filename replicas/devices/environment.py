"""What this machine has, probed once. The checks (start_checks.py) are pure functions of it."""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from pydantic import BaseModel, TypeAdapter, ValidationError

from replicas.devices.host_memory import available_memory

CACHE_VARIABLE = "NEURON_COMPILE_CACHE_URL"
VISIBLE_VARIABLE = "NEURON_RT_VISIBLE_CORES"
PACKAGES = ("torch", "torch-xla", "torch-neuronx", "neuronx-cc", "libneuronxla")
TOOLS = Path("/opt/aws/neuron/bin")
PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")
"""On EC2's Nitro machines: the instance type."""
TOOL_SECONDS = 30


class NeuronProcess(BaseModel, frozen=True):
    """A process on a Neuron device, as neuron-ls tells it."""

    pid: int
    command: str = ""


class NeuronDevice(BaseModel, frozen=True):
    """One chip, as an entry of `neuron-ls --json-output` (Neuron 2.33 and before)."""

    neuron_device: int
    nc_count: int
    memory_size: int
    neuroncore_ids: tuple[int, ...] = ()
    neuron_processes: tuple[NeuronProcess, ...] = ()

    @property
    def core_ids(self) -> tuple[int, ...]:
        """Older tools do not list them: devices are numbered through."""
        first = self.neuron_device * self.nc_count
        return self.neuroncore_ids or tuple(range(first, first + self.nc_count))


@dataclass(frozen=True, slots=True)
class CompileCache:
    """Where compiled programs are kept."""

    url: str | None
    problem: str = ""
    """Why a folder cannot be written."""
    free_bytes: int | None = None
    """Of the folder's disk; None for S3."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine, its runtimes, and the variables that they read."""

    python: tuple[int, int]
    packages: Mapping[str, str]
    """Version by distribution, of PACKAGES those that are installed."""
    variables: Mapping[str, str]
    architecture: str
    cpu_flags: frozenset[str]
    usable_cpus: int
    available_memory: int
    quantized_engines: frozenset[str]
    product: str
    """What the machine calls itself; on EC2 the instance type."""
    devices: tuple[NeuronDevice, ...]
    tool_problem: str
    """Why neuron-ls told nothing; empty if it did."""
    cache: CompileCache
    own_pid: int


def probe() -> Environment:
    """The environment of this process."""
    devices, problem = probe_devices()
    return Environment(
        python=(int(platform.python_version_tuple()[0]), int(platform.python_version_tuple()[1])),
        packages=installed(PACKAGES),
        variables=dict(os.environ),
        architecture=platform.machine(),
        cpu_flags=cpu_flags(),
        usable_cpus=len(os.sched_getaffinity(0)),
        available_memory=available_memory(),
        quantized_engines=frozenset(torch.backends.quantized.supported_engines),
        product=read_text(PRODUCT).strip(),
        devices=devices,
        tool_problem=problem,
        cache=probe_cache(os.environ.get(CACHE_VARIABLE)),
        own_pid=os.getpid(),
    )


def probe_devices(search_path: str | None = None) -> tuple[tuple[NeuronDevice, ...], str]:
    """The Neuron devices of this machine, or why they are not known."""
    path = search_path if search_path is not None else f"{os.environ.get('PATH', '')}{os.pathsep}{TOOLS}"
    tool = shutil.which("neuron-ls", path=path)
    if tool is None:
        return (), "neuron-ls is not installed"
    try:
        done = subprocess.run([tool, "--json-output"], capture_output=True, text=True, timeout=TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"neuron-ls cannot be run ({error})"
    if done.returncode:
        reason = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[0]
        return (), f"neuron-ls --json-output fails ({reason})"
    return parse_devices(done.stdout)


def parse_devices(text: str) -> tuple[tuple[NeuronDevice, ...], str]:
    """Devices in the output of `neuron-ls --json-output`, or why it cannot be read."""
    try:
        return tuple(TypeAdapter(list[NeuronDevice]).validate_json(text)), ""
    except ValidationError as error:
        first = error.errors()[0]
        return (), f"neuron-ls prints another JSON than that of Neuron 2.33 ({first['msg']})"


def probe_cache(url: str | None) -> CompileCache:
    """Whether programs can be kept at `url`, a folder or s3://bucket/prefix. Makes the folder."""
    if url is None or url.startswith("s3://"):
        return CompileCache(url)
    folder = Path(url.removeprefix("file://")).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe_file = folder / f".writable-{os.getpid()}"
        probe_file.touch()
        probe_file.unlink()
    except OSError as error:
        return CompileCache(url, problem=str(error))
    return CompileCache(url, free_bytes=shutil.disk_usage(folder).free)


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Version of each of `names` that is installed."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def cpu_flags() -> frozenset[str]:
    """Instruction sets, as Linux lists them for the first core."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return frozenset(match.group(1).split()) if match else frozenset()


def read_text(path: Path) -> str:
    """The file's text, or nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
