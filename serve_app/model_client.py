"""How the ingress reaches a model's replicas."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, Protocol

from ray.serve.exceptions import RequestCancelledError

from replicas.errors import EngineDeadError
from serve_app.errors import RequestTimeoutError
from serve_app.generation import Delta, GenerationJob


class DeltaStream(Protocol):
    """Serve's DeploymentResponseGenerator, as far as it is used."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    def cancel(self) -> None:
        """Ends the replica's generator; the next step of this stream raises."""
        ...


class ModelClient(Protocol):
    """Replicas of one model."""

    def generate(self, job: GenerationJob) -> DeltaStream: ...

    def stats(self) -> Awaitable[dict[str, float]]:
        """Figures of one replica."""
        ...


class HandleClient:
    """A ModelClient over a DeploymentHandle. Not frozen into types: Serve's handles make methods at run time."""

    def __init__(self, handle: Any) -> None:
        self._generate = handle.options(method_name="generate", stream=True)
        self._stats = handle.options(method_name="stats")

    def generate(self, job: GenerationJob) -> DeltaStream:
        return self._generate.remote(job)

    def stats(self) -> Awaitable[dict[str, float]]:
        return self._stats.remote()


async def deltas(client: ModelClient, job: GenerationJob, timeout_s: float | None) -> AsyncGenerator[Delta, None]:
    """The deltas of `job`. Closing or cancelling it cancels the replica's generator at once.

    Raises RequestTimeoutError after `timeout_s`, EngineDeadError if the replica ended the job before its end.
    """
    expired = ended = False

    def expire() -> None:
        nonlocal expired
        expired = True
        stream.cancel()

    stream = client.generate(job)
    timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, expire)
    try:
        async for delta in stream:
            if delta.finish_reason == "abort":
                raise EngineDeadError(f"{job.request_id} was aborted by the replica")
            ended = delta.finish_reason is not None
            yield delta
        if not ended:
            raise EngineDeadError(f"{job.request_id} ended without a finish_reason")
    except (asyncio.CancelledError, RequestCancelledError):
        if expired:
            raise RequestTimeoutError(f"the request took longer than {timeout_s:g} s and was stopped") from None
        raise
    finally:
        if timer is not None:
            timer.cancel()
        if not ended:
            stream.cancel()
