"""Starting all ranks of an engine."""

from dataclasses import dataclass

from replicas.config import EngineConfig
from replicas.devices.gloo_collectives import free_port, meeting_place
from replicas.drafters.drafter import Drafter
from replicas.engine_runner import Drafters, build_backend, build_runner
from replicas.runner.step_runner import StepRunner
from replicas.tensor_parallel.rank_group import RankGroup, RankProcesses
from replicas.tensor_parallel.rank_process import RankTask, join


@dataclass(frozen=True, slots=True)
class LoadedRanks:
    """What the engine needs of its ranks."""

    runner: StepRunner
    drafter: Drafter | None
    """Rank 0's."""
    attends_in_place: bool


def start_group(config: EngineConfig, num_blocks: int, drafters: Drafters) -> LoadedRanks:
    """Load `config` on all of its ranks at once, of which this process is the first. Raises as `build_runner`."""
    size = config.tensor_parallel_size
    if size == 1:
        backend = build_backend(config)
        runner, drafter = build_runner(config, backend, num_blocks, drafters)
        return LoadedRanks(runner, drafter, backend.attends_in_place)
    store = meeting_place() if config.device == "cpu" else None
    port = store.port if store else free_port()
    processes = RankProcesses([RankTask(config, rank, port, num_blocks, drafters) for rank in range(1, size)])
    try:
        processes.await_state("started")
        backend = build_backend(config, join(config, 0, port, store))
        runner, drafter = build_runner(config, backend, num_blocks, drafters)
        processes.await_state("loaded")
    except BaseException:
        processes.end()
        raise
    return LoadedRanks(RankGroup(runner, processes), drafter, backend.attends_in_place)
