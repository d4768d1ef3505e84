"""One request's figures: counts and order from a server on a socket, times by a clock that the test reads out."""

import json
from itertools import chain
from types import SimpleNamespace

import httpx
import pytest

from benchmarks.load import chat_client
from benchmarks.load.chat_client import ChatSettings, RequestError, ask
from benchmarks.metrics import acceptance_rate
from benchmarks.results import Served
from replicas.request import Acceptance
from tests.benchmarks.load.openai_server import CHUNKS, FIRST_S, GAP_S, SPECULATION, TOKENS, OpenAiServer

STREAMED = ChatSettings("tiny", 64)
WHOLE = ChatSettings("tiny", 64, stream=False)


def answer(server: OpenAiServer, settings: ChatSettings) -> Served:
    with server.running(), httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        return ask(client, settings, "a question")


def test_ttft_is_to_the_first_content_and_tpot_by_the_servers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(moment: float, *deltas: dict[str, str | None], **more: object) -> tuple[float, str]:
        return moment, f"data: {json.dumps({'choices': [{'delta': delta} for delta in deltas], **more})}"

    lines = [
        event(100.1, {"role": "assistant", "content": ""}),
        event(100.5, {"content": "several words"}),
        event(101.0, {"content": "two more"}),
        # A stop token: no content, but it took its time and the server counts it.
        event(101.7, {"content": None}),
        # What follows the last token is no time of a token.
        event(105.0, usage={"prompt_tokens": 7, "completion_tokens": 7, "speculation": SPECULATION}),
        (106.0, ": a comment"),
        (106.0, "data: [DONE]"),
    ]
    clock = chain([100.0], (moment for moment, line in lines if line.startswith("data: {")))
    monkeypatch.setattr(chat_client, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text="\n\n".join(line for _, line in lines) + "\n\n"))
    with httpx.Client(base_url="http://server", transport=transport) as client:
        served = ask(client, STREAMED, "a question")
    assert served == Served(0.5, 1.7, (0.5, 1.0), 7, 7, Acceptance(4, 12, 8))
    assert served.tpot == pytest.approx(0.2)


def test_a_stream_on_a_socket_is_heard_chunk_by_chunk() -> None:
    server = OpenAiServer()
    served = answer(server, STREAMED)
    # A role alone came at 0.02 s.
    assert served.first_content is not None
    assert served.first_content >= FIRST_S
    assert served.first_content == served.content_chunks[0]
    assert len(served.content_chunks) == CHUNKS
    assert served.tokens == TOKENS
    assert served.num_prompt_tokens == 7
    assert served.tpot == pytest.approx((served.end_to_end - served.first_content) / (TOKENS - 1))
    # Were the chunks not read as they come, all would bear the last one's time.
    assert served.end_to_end >= FIRST_S + (CHUNKS - 1) * GAP_S
    assert served.first_content < served.end_to_end
    assert served.acceptance is not None
    assert served.acceptance == Acceptance(4, 12, 8)
    assert acceptance_rate(served.acceptance) == pytest.approx(2 / 3)
    assert served.acceptance.mean_acceptance_length == 3.0
    assert server.bodies == [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "a question"}],
            "max_tokens": 64,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_a_whole_answer_has_no_ttft_and_no_tpot() -> None:
    server = OpenAiServer()
    served = answer(server, WHOLE)
    assert (served.first_content, served.tpot, served.content_chunks) == (None, None, ())
    assert served.end_to_end >= FIRST_S
    assert (served.tokens, served.acceptance) == (TOKENS, Acceptance(4, 12, 8))
    assert server.bodies[0]["stream"] is False
    assert "stream_options" not in server.bodies[0]


def test_another_server_says_nothing_of_acceptance() -> None:
    assert answer(OpenAiServer(speculation=None), STREAMED).acceptance is None


@pytest.mark.parametrize(
    ("server", "settings", "sentence"),
    [
        (OpenAiServer(status=429), STREAMED, 'HTTP 429: {"error":{"message":"too many"}}'),
        (OpenAiServer(usage=False), STREAMED, "has no usage"),
        (OpenAiServer(usage=False), WHOLE, "has no usage"),
        (OpenAiServer(ending=""), STREAMED, r"ended without \[DONE\]"),
        (OpenAiServer(error="out of memory"), STREAMED, "in the stream: .*out of memory"),
        (OpenAiServer(ending="data: {half\n\n"), STREAMED, "is no JSON"),
    ],
)
def test_no_other_end_passes_for_an_answer(server: OpenAiServer, settings: ChatSettings, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        answer(server, settings)


def test_nobody_listens() -> None:
    with (
        httpx.Client(base_url="http://127.0.0.1:1", trust_env=False) as client,
        pytest.raises(RequestError, match="ConnectError"),
    ):
        ask(client, STREAMED, "a question")


def test_one_token_has_no_tpot() -> None:
    assert Served(0.1, 0.1, (0.1,), 1, 7, None).tpot is None
