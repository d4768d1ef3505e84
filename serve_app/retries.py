"""Work for a request begun again on another replica, when the first one was lost before anything was told."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from serve_app.deadline import Deadline
from serve_app.errors import is_replica_loss
from serve_app.generation import Delta, GenerationJob

logger = logging.getLogger(__name__)

PAUSES_S = (0.25, 1.0)
"""Before the second and the third attempt. A replica whose engine died needs the first one to end; more attempts a
request that kills replicas does not get."""

T = TypeVar("T")


async def retried(
    job: GenerationJob,
    deadline: Deadline,
    work: Callable[[GenerationJob], Awaitable[T]],
    on_retry: Callable[[], None] = lambda: None,
) -> T:
    """The result of `work` for `job`, whose attempts differ in their request_id.

    Raises what `work` raises: a loss only after the last attempt, or where `deadline` leaves no time for another.
    """
    for attempt, pause_s in enumerate(PAUSES_S):
        try:
            return await work(_attempt(job, attempt))
        except Exception as error:
            remaining_s = deadline.remaining_s
            if not is_replica_loss(error) or (remaining_s is not None and remaining_s <= pause_s):
                raise
            logger.warning("%s lost its replica and is tried again: %s", job.request_id, type(error).__name__)
            on_retry()
        await asyncio.sleep(pause_s)
    return await work(_attempt(job, len(PAUSES_S)))


def _attempt(job: GenerationJob, number: int) -> GenerationJob:
    # A replica that could not be reached for a moment may still work on the earlier one.
    return replace(job, request_id=f"{job.request_id}.{number}") if number else job


async def opened(stream: AsyncGenerator[Delta, None]) -> tuple[Delta, AsyncGenerator[Delta, None]]:
    """The first of `stream`, and the rest."""
    return await stream.__anext__(), stream
