"""A streamed answer whose arrival is timed at next to no cost: what is measured shares this machine's cores."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence

import httpx

from benchmarks.load.chat_client import ChatSettings, RequestError, streamed
from benchmarks.results import Served


async def timed_stream(url: httpx.URL, settings: ChatSettings, text: str) -> Served:
    """The streamed answer to `text`. Raises RequestError for one that is not whole.

    Pieces are kept with their times as they come from the socket, and read only after the end.
    """
    content = json.dumps(settings.body(text)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection(url.host, url.port)
    begin = time.perf_counter()
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
    pieces: list[tuple[float, bytes]] = []
    while piece := await reader.read(65536):
        pieces.append((time.perf_counter() - begin, piece))
    writer.close()
    return served_in(pieces)


def served_in(pieces: Sequence[tuple[float, bytes]]) -> Served:
    """What came in `pieces` of an HTTP response, each (seconds since the request, bytes). Raises RequestError."""
    moment = 0.0

    def lines() -> Iterator[str]:
        nonlocal moment
        buffered = b""
        for moment, piece in pieces:  # noqa: B007 (`streamed` asks for it)
            *whole, buffered = (buffered + piece).split(b"\n")
            yield from (line.decode() for line in whole)

    try:
        return streamed(lines(), lambda: moment)
    except RequestError as error:
        raise RequestError(f"{error}; at the end: {pieces[-1][1][-300:] if pieces else b''!r}") from error
