"""Several answers to one prompt: their seeds, and their streams as one."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import TypeVar

from replicas.request import SamplingParams

T = TypeVar("T")


def choice_sampling(sampling: SamplingParams, choice: int) -> SamplingParams:
    """How choice number `choice` is sampled: 0 as if it were alone, the others with seeds derived from the request's.

    Without a seed every choice draws one of its own in the engine.
    """
    if sampling.seed is None or choice == 0:
        return sampling
    digest = hashlib.blake2b(f"{sampling.seed}/{choice}".encode(), digest_size=8).digest()
    return replace(sampling, seed=int.from_bytes(digest, "little", signed=True))


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of all `streams` as they come. Closing it, or an error of one of them, closes all of them."""
    waiting = {asyncio.ensure_future(_next(stream)): stream for stream in streams}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # In the order of `streams`: what comes at once comes in the same order every time.
            for task in [task for task in waiting if task in done]:
                stream = waiting.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                waiting[asyncio.ensure_future(_next(stream))] = stream
                yield item
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


async def _next(stream: AsyncGenerator[T, None]) -> T:
    return await stream.__anext__()
