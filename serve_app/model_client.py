"""How the ingress reaches a model's replicas."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, Protocol

from ray.serve.exceptions import RequestCancelledError

from replicas.errors import EngineDeadError, RequestError
from serve_app.deadline import Deadline
from serve_app.generation import Delta, GenerationJob, Tokenized, TokenizeJob


class DeltaStream(Protocol):
    """Serve's DeploymentResponseGenerator, as far as it is used."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    def cancel(self) -> None:
        """Ends the replica's generator; the next step of this stream raises."""
        ...


class ModelClient(Protocol):
    """Replicas of one model."""

    def generate(self, job: GenerationJob) -> DeltaStream: ...

    def tokenize(self, job: TokenizeJob) -> Awaitable[Tokenized]: ...

    def detokenize(self, token_ids: tuple[int, ...]) -> Awaitable[str]: ...

    def stats(self) -> Awaitable[dict[str, float]]:
        """Figures of one replica."""
        ...


class HandleClient:
    """A ModelClient over a DeploymentHandle. Not frozen into types: Serve's handles make methods at run time."""

    def __init__(self, handle: Any) -> None:
        self._generate = handle.options(method_name="generate", stream=True)
        self._tokenize = handle.options(method_name="tokenize")
        self._detokenize = handle.options(method_name="detokenize")
        self._stats = handle.options(method_name="stats")

    def generate(self, job: GenerationJob) -> DeltaStream:
        return self._generate.remote(job)

    def tokenize(self, job: TokenizeJob) -> Awaitable[Tokenized]:
        return self._tokenize.remote(job)

    def detokenize(self, token_ids: tuple[int, ...]) -> Awaitable[str]:
        return self._detokenize.remote(token_ids)

    def stats(self) -> Awaitable[dict[str, float]]:
        return self._stats.remote()


async def deltas(client: ModelClient, job: GenerationJob, deadline: Deadline) -> AsyncGenerator[Delta, None]:
    """The deltas of `job`. Closing or cancelling it cancels the replica's generator at once.

    Raises RequestTimeoutError after `deadline`, EngineDeadError if the replica ended the job before its end.
    """
    expired = False
    open_choices = job.num_choices

    def expire() -> None:
        nonlocal expired
        expired = True
        stream.cancel()

    remaining_s = deadline.remaining_s
    stream = client.generate(job)
    timer = None if remaining_s is None else asyncio.get_running_loop().call_later(remaining_s, expire)
    try:
        async for delta in stream:
            if delta.finish_reason == "abort":
                raise EngineDeadError(f"{job.request_id} was aborted by the replica")
            if delta.finish_reason == "error":
                param = job.sampling.grammar.param if job.sampling.grammar else None
                raise RequestError("no token of this model can go on with the text", param, "invalid_grammar")
            open_choices -= delta.finish_reason is not None
            yield delta
        if open_choices and not expired:
            raise EngineDeadError(f"{job.request_id} ended without a finish_reason")
    except (asyncio.CancelledError, RequestCancelledError):
        if not expired:
            raise
    finally:
        if timer is not None:
            timer.cancel()
        if open_choices:
            stream.cancel()
    if open_choices:
        raise deadline.error()
