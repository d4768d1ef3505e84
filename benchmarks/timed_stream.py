"""A streamed answer whose arrival is timed at next to no cost: what is measured shares this machine's cores."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.metrics import Answer


@dataclass(frozen=True, slots=True)
class TimedStream:
    """One answer, as it arrived."""

    answer: Answer
    chunks: int
    """Events with content."""


async def timed_stream(url: httpx.URL, path: str, body: dict[str, Any]) -> TimedStream:
    """Post `body`, which asks for a stream with usage. Raises RuntimeError for an answer that is not whole.

    Pieces are kept with their times as they come from the socket, and read only after the end.
    """
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    reader, writer = await asyncio.open_connection(url.host, url.port)
    begin = time.perf_counter()
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    pieces: list[tuple[float, bytes]] = []
    while piece := await reader.read(65536):
        pieces.append((time.perf_counter() - begin, piece))
    writer.close()
    return _read(pieces)


def _read(pieces: list[tuple[float, bytes]]) -> TimedStream:
    times: list[float] = []
    tokens, buffered = 0, b""
    for seconds, piece in pieces:
        *lines, buffered = (buffered + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"the server answered with {event['error']}")
            if any(choice["delta"].get("content") for choice in event["choices"]):
                times.append(seconds)
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    if not tokens or not times:
        raise RuntimeError(f"no whole stream: {pieces[-1][1][-300:] if pieces else b''!r}")
    return TimedStream(Answer(times[0], times[-1], tokens), len(times))
