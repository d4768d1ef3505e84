"""The engine on a thread of its own, for asyncio callers: submit, stream, abort, health."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress

from replicas.config import EngineConfig
from replicas.engine import Engine, EngineStats, build_engine
from replicas.errors import EngineDeadError, RequestError
from replicas.request import GenerationRequest, RequestOutput
from replicas.scheduling.k_policy import KPolicy
from replicas.subscriber import Subscriber
from replicas.text_codec import TextCodec

logger = logging.getLogger(__name__)


class AsyncEngine:
    """Runs an engine on one thread, which alone touches it; callers only send it commands and receive news.

    That thread calls `build` too: OpenMP keeps a pool of workers for each thread that ever ran a parallel region,
    and with more workers than cores it stops spinning between regions, which costs half as much again a step.
    """

    def __init__(self, build: Callable[[], Engine]) -> None:
        """Returns when the engine is built; raises what `build` raises."""
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._subscribers: dict[str, Subscriber] = {}
        self._failure: BaseException | None = None
        self._stopped = False
        self._busy_since: float | None = None
        """When the thread began what it does now, monotonic; None while it waits for commands."""
        built: Future[Engine] = Future()
        self._thread = threading.Thread(target=self._run, args=(build, built), name="engine", daemon=True)
        self._thread.start()
        engine = built.result()
        if engine.codec is None:
            self.shutdown()
            raise ValueError("an AsyncEngine needs an engine with a TextCodec")
        self.config: EngineConfig = engine.config
        self.codec: TextCodec = engine.codec
        self._grammars = engine.grammars

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        """The news of `request` until it has finished. Closing the generator aborts the request.

        Raises RequestError for a prompt that does not fit or a grammar that is wrong, and EngineDeadError if the
        engine is or becomes dead.
        """
        self.check_health()
        if request.sampling.grammar is not None:
            # Compiled here, and found again when the request is added: it may take longer than a step.
            await asyncio.to_thread(self._grammars.compile, request.sampling.grammar)
        subscriber = Subscriber(asyncio.get_running_loop(), asyncio.Queue())
        finished = False
        self._commands.put(lambda: self._add(request, subscriber))
        # Again, for a thread that ended in between: from here on it has answered the command, or it will.
        self.check_health()
        try:
            while not finished:
                news = await subscriber.queue.get()
                if isinstance(news, Exception):
                    finished = True
                    raise news
                finished = news.finish_reason is not None
                yield news
        finally:
            if not finished:
                self._commands.put(lambda: self._abort(request.request_id))

    def check_health(self) -> None:
        """Raises EngineDeadError if no step can run any more, or if one takes longer than step_timeout_s.

        That cannot be stopped: callers that wait are told, and the process is to be ended.
        """
        since = self._busy_since
        if since is not None and not self._stopped and time.monotonic() - since > self.config.step_timeout_s:
            limit_s = self.config.step_timeout_s
            self._failure = TimeoutError(f"a step has not ended for more than step_timeout_s, {limit_s:g} s")
            logger.error("%s: the engine is taken for stuck", self._failure)
            self._end()
            # Other ranks hold their devices until they end, and wait in the same step.
            self._engine.close()
        if self._stopped:
            raise self._death()
        self._engine.check_health()

    def stats(self) -> EngineStats:
        """Figures as of the last step or command."""
        return self._stats

    def shutdown(self) -> None:
        """End the thread after the step that is running; requests that are not finished get EngineDeadError.

        A thread that is stuck is left behind.
        """
        self._commands.put(None)
        if not isinstance(self._failure, TimeoutError):
            self._thread.join()

    def _run(self, build: Callable[[], Engine], built: "Future[Engine]") -> None:
        try:
            self._engine = build()
            self._stats = self._engine.stats()
        except BaseException as failure:
            built.set_exception(failure)
            return
        built.set_result(self._engine)
        try:
            while self._obey() and not self._stopped:
                self._busy_since = time.monotonic()
                outputs = self._engine.step() if self._engine.has_work else []
                self._stats = self._engine.stats()
                for output in outputs:
                    self._publish(output)
        except BaseException as failure:
            logger.exception("the engine's step failed; no further step will run")
            self._failure = self._failure or failure
        finally:
            self._end()
            self._engine.close()

    def _end(self) -> None:
        """Tell everybody who waits, those too whose command did not reach the engine. Twice does no harm."""
        self._stopped = True
        with suppress(queue.Empty):
            while True:
                command = self._commands.get(block=False)
                if command is not None:
                    command()
        for subscriber in list(self._subscribers.values()):
            subscriber.tell(self._death())

    def _death(self) -> EngineDeadError:
        cause = "it was shut down" if self._failure is None else repr(self._failure)
        return EngineDeadError(f"the engine of {self.config.model} has stopped: {cause}")

    def _obey(self) -> bool:
        """Carry out the commands that wait; blocks while there is nothing else to do. False means shut down."""
        while True:
            self._busy_since = None
            try:
                command = self._commands.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            self._busy_since = time.monotonic()
            command()
            self._stats = self._engine.stats()

    def _add(self, request: GenerationRequest, subscriber: Subscriber) -> None:
        if self._stopped:
            subscriber.tell(self._death())
            return
        try:
            self._engine.add_request(request)
        except RequestError as error:
            subscriber.tell(error)
        else:
            self._subscribers[request.request_id] = subscriber

    def _abort(self, request_id: str) -> None:
        if not self._stopped:
            self._engine.abort(request_id)
        self._subscribers.pop(request_id, None)

    def _publish(self, output: RequestOutput) -> None:
        subscriber = self._subscribers.get(output.request_id)
        if subscriber is not None:
            subscriber.tell(output)
            if output.finish_reason is not None:
                del self._subscribers[output.request_id]


def build_async_engine(config: EngineConfig, k_policy: KPolicy) -> AsyncEngine:
    """Load, warm up and start the engine of `config`. Raises CheckpointError or ConfigError."""

    def build() -> Engine:
        engine = build_engine(config, k_policy)
        engine.warm_up()
        return engine

    return AsyncEngine(build)
