"""A rank other than 0: a process that runs the plans it is sent, as rank 0 runs them."""

import logging
import signal
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

from replicas.config import EngineConfig
from replicas.devices.collectives import CollectiveError, Collectives
from replicas.devices.gloo_collectives import GlooCollectives, found_at
from replicas.devices.neuron_ranks import enter_neuron_rank
from replicas.engine_runner import Drafters, build_backend, build_runner
from replicas.errors import EyrieError
from replicas.runner.model_runner import ModelRunner
from replicas.scheduling.step_plan import StepPlan
from replicas.tensor_parallel.signs_of_life import Teller

logger = logging.getLogger(__name__)

Order = StepPlan | Literal["warm up"]
"""What rank 0 sends; the end of its connection means the end."""


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a rank is, and where it meets the others."""

    config: EngineConfig
    rank: int
    port: int
    num_blocks: int
    drafters: Drafters


@dataclass(frozen=True, slots=True)
class RankState:
    """What a rank tells rank 0: that it has got so far."""

    reached: Literal["started", "loaded"]


@dataclass(frozen=True, slots=True)
class RankFailure:
    """What a rank tells rank 0: why it ends."""

    sentence: str
    trace: str
    is_consequence: bool
    """The cause lies in another rank."""
    is_refusal: bool
    """The sentence is written for the person who can mend it."""


def run_rank(task: RankTask, connection: "Connection[Any, Any]") -> None:
    """Body of the process. Ends when rank 0 closes its side, or after telling it why not."""
    # Ctrl-C goes to the whole process group; rank 0 ends the others in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    teller = Teller(connection.send)
    try:
        teller.tell(RankState("started"))
        runner = _load(task)
        teller.tell(RankState("loaded"))
        # Not before: an import of a device's runtime may keep all other threads waiting.
        teller.give_signs(task.config.rank_timeout_s)
        _obey(runner, connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # Rank 0 is gone, or has closed.
        return
    except BaseException as error:
        logger.exception("rank %d of %d ends", task.rank, task.config.tensor_parallel_size)
        failure = RankFailure(
            sentence=str(error) if isinstance(error, EyrieError) else repr(error),
            trace=traceback.format_exc(),
            is_consequence=isinstance(error, CollectiveError),
            is_refusal=isinstance(error, EyrieError),
        )
        try:
            teller.tell(failure)
        except OSError:
            logger.error("rank 0 is gone, and was not told")


def _load(task: RankTask) -> ModelRunner:
    collectives = join(task.config, task.rank, task.port)
    backend = build_backend(task.config, collectives)
    return build_runner(task.config, backend, task.num_blocks, task.drafters)[0]


def join(config: EngineConfig, rank: int, port: int, store: Any = None) -> Collectives | None:
    """Meet the other ranks of `config`; None on a device whose runtime does that, when it is started."""
    if config.device == "cpu":
        return GlooCollectives(store or found_at(port), rank, config.tensor_parallel_size)
    enter_neuron_rank(rank, config.tensor_parallel_size, port)
    return None


def _obey(runner: ModelRunner, connection: "Connection[Any, Any]") -> None:
    while True:
        order: Order = connection.recv()
        if isinstance(order, StepPlan):
            runner.execute(order)
        else:
            runner.warm_up()
