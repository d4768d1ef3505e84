"""Streams that are read after their end, by the times of the pieces in which they came."""

import asyncio

import httpx
import pytest

from benchmarks.load.chat_client import ChatSettings, RequestError, tpot_of
from benchmarks.timed_stream import served_in, timed_stream
from tests.benchmarks.load.openai_server import CHUNKS, FIRST_S, GAP_S, TOKENS, OpenAiServer

EVENT = b'data: {"choices":[{"delta":{"content":"a word"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\ndata: [DONE]\n\n'


def test_an_event_has_the_time_of_the_piece_that_ends_it() -> None:
    pieces = [(0.1, b"HTTP/1.1 200 OK\r\n\r\n"), (0.5, EVENT + EVENT[:9]), (0.9, EVENT[9:]), (4.0, USAGE)]
    served = served_in(pieces)
    assert served.content_chunks == (0.5, 0.9)
    assert (served.tokens, served.num_prompt_tokens) == (5, 3)
    assert tpot_of(served) == pytest.approx(0.1)


def test_an_answer_that_breaks_off_or_is_refused_is_told_with_its_end() -> None:
    with pytest.raises(RequestError, match=r"without \[DONE\]; at the end: .*a word"):
        served_in([(0.5, EVENT)])
    with pytest.raises(RequestError, match="no more room"):
        served_in([(0.5, b"HTTP/1.1 429 Too Many Requests\r\n\r\nno more room")])
    with pytest.raises(RequestError, match="without"):
        served_in([])


def test_a_stream_on_a_socket() -> None:
    with OpenAiServer().running() as server:
        served = asyncio.run(timed_stream(httpx.URL(server.url), ChatSettings("tiny", 9), "say"))
    assert len(served.content_chunks) == CHUNKS
    assert served.tokens == TOKENS
    assert served.first_content is not None
    assert served.first_content >= FIRST_S
    # However late the client is woken, the last content is no earlier than the server wrote it.
    assert served.content_chunks[-1] >= FIRST_S + (CHUNKS - 1) * GAP_S
    body = server.bodies[0]
    assert (body["messages"][0]["content"], body["max_tokens"], body["stream"]) == ("say", 9, True)
