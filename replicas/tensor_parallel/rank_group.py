"""Rank 0's side: starts the other ranks, sends them what it runs itself, and watches over them.

Plans travel through a pipe to each rank and not through a collective: an idle engine may wait for days, and the end
of a process closes its pipe (docs/decisions/0013-xla-programs.md).
"""

import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import psutil

from replicas.errors import ConfigError, EngineDeadError
from replicas.runner.model_runner import ModelRunner
from replicas.scheduling.step_plan import StepPlan, StepResult
from replicas.tensor_parallel.rank_process import Order, RankFailure, RankState, RankTask, run_rank
from replicas.tensor_parallel.signs_of_life import SignOfLife, Silences

logger = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
"""After the first news of a failure: the rank that caused it and those that only felt it may tell in any order."""
NOTICE_SECONDS = 3.0
"""How long a step that failed waits to hear why."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank that runs elsewhere."""

    index: int
    process: SpawnProcess
    connection: "Connection[Any, Any]"


class RankProcesses:
    """The processes of ranks 1 and above."""

    def __init__(self, tasks: Sequence[RankTask]) -> None:
        context = multiprocessing.get_context("spawn")
        ranks: list[Rank] = []
        for task in tasks:
            ours, theirs = context.Pipe()
            process = context.Process(target=run_rank, args=(task, theirs), name=f"rank-{task.rank}", daemon=True)
            process.start()
            # Only the rank holds it now, so that its end is heard here.
            theirs.close()
            ranks.append(Rank(task.rank, process, ours))
        self.ranks = tuple(ranks)
        self.size = 1 + len(ranks)
        self._timeout_s = tasks[0].config.rank_timeout_s

    def await_state(self, reached: str) -> None:
        """Return when all ranks have `reached` it. Raises ConfigError, with a rank's own sentence, if one has ended."""
        for rank in self.ranks:
            try:
                news = rank.connection.recv()
            except (EOFError, ConnectionResetError):
                news = None
            if news != RankState(reached):  # pyright: ignore[reportArgumentType]
                raise ConfigError(self._cause({rank.index: news if isinstance(news, RankFailure) else None}))

    def send(self, order: Order) -> None:
        """To all ranks. One that has ended is left to whoever listens."""
        for rank in self.ranks:
            try:
                rank.connection.send(order)
            except OSError:
                logger.debug("rank %d does not listen any more", rank.index)

    def hear_the_end(self) -> str:
        """Block until a rank ends or falls silent; then the cause, in one sentence. What failures tell is logged."""
        heard: dict[int, RankFailure | None] = {}
        waiting: dict[Any, Rank] = {rank.connection: rank for rank in self.ranks}
        silences, end = Silences([rank.index for rank in self.ranks], self._timeout_s), float("inf")
        while waiting and (begin := time.monotonic()) < end:
            ready = wait(list(waiting), min(silences.period_s, end - begin))
            silences.listened(time.monotonic() - begin)
            for connection in ready:
                rank = waiting[connection]
                news = self._news_of(rank)
                if isinstance(news, SignOfLife):
                    silences.heard(rank.index)
                else:
                    heard[rank.index] = news
                    del waiting[connection]
                    end = min(end, time.monotonic() + GRACE_SECONDS)
            if not heard and (lost := silences.lost()) is not None:
                return self._silence_of(lost)
        return self._cause(heard)

    def _news_of(self, rank: Rank) -> Any:
        try:
            return rank.connection.recv()
        except (EOFError, OSError):
            return None

    def _silence_of(self, index: int) -> str:
        process = self.ranks[index - 1].process
        try:
            state = psutil.Process(process.pid).status()
        except psutil.Error:
            state = "unknown"
        return (
            f"rank {index} of {self.size} (process {process.pid}, {state}) has not ended, but has given no sign of "
            f"life for rank_timeout_s, {self._timeout_s:g} s"
        )

    def _cause(self, heard: dict[int, RankFailure | None]) -> str:
        for index, failure in heard.items():
            if failure is not None:
                logger.error("rank %d of %d failed:\n%s", index, self.size, failure.trace)
        told = {index: failure for index, failure in heard.items() if failure is not None}
        own = [index for index, failure in told.items() if not failure.is_consequence]
        silent = [index for index in heard if index not in told]
        index = next(iter([*own, *silent, *told]))
        if index in told:
            where = "" if own and told[index].is_refusal else f"rank {index} of {self.size}: "
            return where + told[index].sentence
        process = self.ranks[index - 1].process
        process.join(GRACE_SECONDS)
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"rank {index} of {self.size} (process {process.pid}) {how}"

    def end(self) -> None:
        """Kill all ranks: they hold nothing that outlives them, and one may wait for another for ever."""
        for rank in self.ranks:
            rank.process.kill()
        for rank in self.ranks:
            rank.process.join()
            rank.connection.close()


class RankGroup:
    """Runs plans on all ranks; this process is rank 0. A rank that ends, or falls silent, takes the whole
    group with it.
    """

    def __init__(self, runner: ModelRunner, processes: RankProcesses) -> None:
        """The other ranks must have loaded."""
        self._runner = runner
        self._processes = processes
        self._failure: str | None = None
        self._ended = threading.Event()
        self._is_closing = False
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    def execute(self, plan: StepPlan) -> StepResult:
        """See StepRunner. Raises EngineDeadError, with the cause, if a rank has failed."""
        self._order(plan)
        try:
            return self._runner.execute(plan)
        except Exception as error:
            raise self._explained(error) from error

    def warm_up(self) -> int:
        """See StepRunner. Raises EngineDeadError, with the cause, if a rank has failed."""
        self._order("warm up")
        try:
            return self._runner.warm_up()
        except Exception as error:
            raise self._explained(error) from error

    @property
    def num_programs(self) -> int:
        return self._runner.num_programs

    @property
    def num_new_programs(self) -> int:
        return self._runner.num_new_programs

    def check_health(self) -> None:
        """Raises EngineDeadError, with the cause, as soon as a rank is known to have ended or to be silent."""
        if self._failure is not None:
            raise EngineDeadError(self._failure)

    def close(self) -> None:
        """End the other ranks. Callable again."""
        self._is_closing = True
        # Pipes are closed by whoever reads them, when the ranks' ends are.
        for rank in self._processes.ranks:
            rank.process.kill()
        self._watcher.join()

    def _order(self, order: Order) -> None:
        self.check_health()
        self._processes.send(order)

    def _watch(self) -> None:
        cause = self._processes.hear_the_end()
        if not self._is_closing:
            logger.error("%s; the replica runs no further step", cause)
            self._failure = cause
            self._ended.set()
        # Ranks that are left may wait for the one that ended; rank 0 too, until their sockets close.
        self._processes.end()

    def _explained(self, error: Exception) -> Exception:
        """`error`, or what happened to a rank if that is why."""
        if not self._ended.wait(NOTICE_SECONDS) or self._failure is None:
            return error
        return EngineDeadError(self._failure)
