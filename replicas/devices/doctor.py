"""Tells what this machine has and lacks, for the CPU and for NeuronCores, and whether a config's engines fit it.

    python -m replicas.devices.doctor [configs/eagle3.yaml] [--device cpu | neuron]

The exit status is 1 if a device that is asked for (the config's, or --device) has an error. Loads and compiles nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from replicas.config_file import NamedEngine, read_engines
from replicas.devices.environment import Environment, probe
from replicas.devices.memory_plan import gib
from replicas.devices.start_checks import Finding, cpu_findings, neuron_findings
from replicas.engine_memory import plan_config
from replicas.engine_programs import compiled_programs
from replicas.errors import ConfigError, EyrieError

DEVICES = ("cpu", "neuron")


@dataclass(frozen=True, slots=True)
class Section:
    """Findings about one device."""

    title: str
    device: str
    findings: list[Finding]


def diagnose(environment: Environment, engines: Sequence[NamedEngine], device: str | None) -> list[Section]:
    """All that can be said of `environment`, and of `engines` there, on `device` instead of their own if given."""
    placed = [NamedEngine(e.name, e.config.model_copy(update={"device": device or e.config.device})) for e in engines]
    on_cpu = [engine for engine in placed if engine.config.device == "cpu"]
    on_neuron = [engine.config for engine in placed if engine.config.device == "neuron"]
    cores = sum(config.tensor_parallel_size for config in on_neuron)
    programs = sum(len(compiled_programs(config)) for config in on_neuron)
    dtype = on_cpu[0].config.dtype if on_cpu else "float16"
    sections = [
        Section("CPU", "cpu", cpu_findings(environment, dtype, on_cpu[0].config.num_threads if on_cpu else None)),
        Section(
            "NeuronCores (XLA-CPU tested, Neuron untested)",
            "neuron",
            neuron_findings(environment, cores or 1, programs),
        ),
    ]
    sections += [
        Section(f"{engine.name} on {engine.config.device}", engine.config.device, [memory(engine)]) for engine in placed
    ]
    return sections


def memory(engine: NamedEngine) -> Finding:
    """Whether the engine fits, and what it then holds."""
    config = engine.config
    try:
        plan = plan_config(config)
        plan.check()
    except EyrieError as error:
        return Finding("error", "memory", str(error))
    sentence = (
        f"{gib(plan.needed)} of {gib(plan.pool.capacity)} GiB of {plan.pool.name} are needed ({plan.breakdown()}); "
        f"KV for {plan.sequences_that_fit} sequences of {config.max_model_len} tokens fits"
    )
    if plan.num_blocks < plan.wanted_blocks:
        sentence += f", fewer than max_num_seqs {config.max_num_seqs}: sequences will be preempted"
        return Finding("warning", "memory", sentence)
    return Finding("ok", "memory", sentence)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m replicas.devices.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, nargs="?", help="a Serve YAML, or the keys of one engine")
    parser.add_argument("--device", choices=DEVICES, help="instead of the config's; cpu without a config")
    args = parser.parse_args(arguments)
    try:
        engines = read_engines(args.config) if args.config else []
    except ConfigError as error:
        print(f"{args.config} is wrong:\n{error}", file=sys.stderr)
        return 1
    sections = diagnose(probe(), engines, args.device)
    for section in sections:
        print(section.title)
        for finding in section.findings:
            print(f"  {finding.level:<8} {finding.sentence}")
    asked = {args.device} if args.device else {engine.config.device for engine in engines} or {"cpu"}
    return int(any(f.level == "error" for s in sections if s.device in asked for f in s.findings))


if __name__ == "__main__":
    sys.exit(main())
