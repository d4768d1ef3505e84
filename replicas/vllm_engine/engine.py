"""vLLM's AsyncLLM behind the protocol of our own engine: generate, abort, health, stats, shutdown."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from replicas.errors import EngineDeadError
from replicas.models.source import resolve_model
from replicas.request import GenerationRequest, RequestOutput
from replicas.scheduling.k_policy import KPolicy
from replicas.scheduling.prompt_limits import check_prompt
from replicas.scheduling.token_choice import token_choice
from replicas.structured_output import Grammars
from replicas.subscriber import Subscriber
from replicas.text_codec import TextCodec
from replicas.vllm_engine.config import VllmConfig
from replicas.vllm_engine.engine_args import engine_arguments
from replicas.vllm_engine.library import InstalledVllm, VllmLibrary
from replicas.vllm_engine.outputs import Progress
from replicas.vllm_engine.sampling import sampling_values
from replicas.vllm_engine.stats import VllmStats, draft_feedback

logger = logging.getLogger(__name__)

StepListener = Callable[[VllmStats], None]
"""Hears the figures after each step, on vLLM's thread."""


class VllmEngine:
    """Runs an AsyncLLM in an event loop of its own, on a thread of its own: any loop may then call it."""

    def __init__(
        self,
        config: VllmConfig,
        codec: TextCodec,
        library: VllmLibrary,
        arguments: dict[str, Any],
        k_policy: KPolicy,
        listener: StepListener,
    ) -> None:
        """Returns when vLLM serves. Raises ConfigError."""
        self.config = config
        self.codec = codec
        self._library = library
        self._stats = VllmStats()
        self._k_policy = k_policy
        self._listener = listener
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        try:
            self._engine: Any = self._run(self._start(arguments))
        except BaseException:
            self._end_loop()
            raise
        self._vocab_size = library.vocab_size(self._engine)
        self._grammars = Grammars(codec.all_token_bytes, self._vocab_size, codec.eos_token_ids)
        blocks = library.num_blocks(self._engine)
        self._stats = VllmStats(free_blocks=blocks, total_blocks=blocks)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        """The news of `request` until it has finished. Closing the generator aborts the request.

        Raises RequestError for what our own engine refuses too and for what vLLM does not have, and EngineDeadError.
        """
        self.check_health()
        sampling = request.sampling
        check_prompt(request.prompt_token_ids, self.config.max_model_len, self._vocab_size)
        # These two for what they refuse: the same requests, in the same words.
        token_choice(sampling, len(request.prompt_token_ids), sampling.stop_token_ids, self._vocab_size)
        if sampling.grammar is not None:
            await asyncio.to_thread(self._grammars.compile, sampling.grammar)
        params = self._library.sampling_params(sampling_values(sampling))
        subscriber = Subscriber(asyncio.get_running_loop(), asyncio.Queue())
        relay = asyncio.run_coroutine_threadsafe(self._relay(request, params, subscriber), self._loop)
        try:
            while True:
                news = await subscriber.queue.get()
                if isinstance(news, Exception):
                    raise news
                yield news
                if news.finish_reason is not None:
                    return
        finally:
            relay.cancel()

    def check_health(self) -> None:
        """Raises EngineDeadError if no step can run any more."""
        if self._stopped:
            raise EngineDeadError(f"the engine of {self.config.model} has stopped: it was shut down")
        if self._engine.errored:
            raise EngineDeadError(f"the engine of {self.config.model} has stopped: vLLM's core process failed")

    def stats(self) -> VllmStats:
        """Figures as of the last step."""
        return self._stats

    def shutdown(self) -> None:
        """End vLLM's processes; requests that are not finished get EngineDeadError."""
        if self._stopped:
            return
        self._stopped = True
        self._run(self._stop())
        self._end_loop()

    async def _start(self, arguments: dict[str, Any]) -> Any:
        return self._library.start(arguments, self._observe)

    async def _stop(self) -> None:
        requests = [task for task in asyncio.all_tasks() if task.get_name() == _TASK]
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        self._engine.shutdown()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    async def _relay(self, request: GenerationRequest, params: Any, subscriber: Subscriber) -> None:
        """From vLLM's stream to the subscriber's; cancelled, it aborts the request."""
        task = asyncio.current_task()
        assert task is not None
        task.set_name(_TASK)
        sampling = request.sampling
        count = len(request.prompt_token_ids)
        progress = Progress(request.request_id, count, sampling.logprobs, sampling.prompt_logprobs)
        prompt = {"prompt_token_ids": list(request.prompt_token_ids)}
        try:
            async with aclosing(self._engine.generate(prompt, params, request.request_id)) as outputs:
                async for output in outputs:
                    subscriber.tell(progress.of(output))
        except asyncio.CancelledError:
            if self._stopped:
                subscriber.tell(EngineDeadError(f"the engine of {self.config.model} has stopped: it was shut down"))
            raise
        except Exception as error:
            if not isinstance(told := self._library.translated(error), EngineDeadError) and told is error:
                logger.exception("request %s failed in vLLM", request.request_id)
            subscriber.tell(told)

    def _observe(self, scheduler: Any, iteration: Any) -> None:
        self._stats = self._stats.after(scheduler, iteration)
        feedback = None if scheduler is None else draft_feedback(scheduler)
        if feedback is not None:
            self._k_policy.observe(feedback)
        self._listener(self._stats)


_TASK = "vllm request"


def _unheard(stats: VllmStats) -> None:
    pass


def build_vllm_engine(
    config: VllmConfig, k_policy: KPolicy, library: VllmLibrary | None = None, listener: StepListener = _unheard
) -> VllmEngine:
    """Start the engine of `config`, whose K by batch size `k_policy` gives now, once and for all.

    Afterwards `k_policy` only hears of each step that verified drafts, on vLLM's thread.

    Raises CheckpointError or ConfigError.
    """
    library = library or InstalledVllm()
    folder = resolve_model(config.model)
    arguments = engine_arguments(config, folder, k_policy, library.argument_names)
    return VllmEngine(config, TextCodec(folder), library, arguments, k_policy, listener)
