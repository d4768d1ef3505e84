"""Which engine does a sweep's tasks, and in which order."""

from benchmarks.measuring import Measurer, MeasuringEngine, Task
from benchmarks.measuring_vllm import MeasuringVllm, in_few_starts
from benchmarks.sweep_config import AnyEngineConfig, SweepConfig
from replicas.vllm_engine.config import VllmConfig


def measurer(config: SweepConfig, engine: AnyEngineConfig) -> Measurer:
    """Of `engine`. Raises ConfigError or CheckpointError."""
    return MeasuringVllm(config, engine) if isinstance(engine, VllmConfig) else MeasuringEngine(config, engine)


def ordered(tasks: list[Task], engine: AnyEngineConfig) -> list[Task]:
    """`tasks` as `engine` can do them in reasonable time."""
    return in_few_starts(tasks) if isinstance(engine, VllmConfig) else tasks
