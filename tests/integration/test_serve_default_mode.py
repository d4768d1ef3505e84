"""The same application in Serve's default mode: user code and routers on threads of their own. Its spans are kept."""

import queue
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.serve_process import Server, demo_config, running, steady_ports
from tests.integration.test_serve_openai_api import FRUITS, MODEL, ask, total_blocks, wait_for_stats
from tests.serve_app.trace_collector import Collector, collecting

pytestmark = pytest.mark.serving


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="module")
def default_server(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Server]:
    """configs/eagle3.yaml without any of Serve's switches, and with room for one request and one in the queue."""
    [port] = steady_ports(1)
    config = demo_config(port)
    model = config["applications"][0]["args"]["models"][0]
    model |= {"max_ongoing_requests": 1, "max_queued_requests": 1}
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with running(config, tmp_path_factory.mktemp("serve"), variables) as server:
        yield server


def test_plain_and_streamed_answers_agree(default_server: Server) -> None:
    plain = ask(default_server)
    streamed = "".join(chunk.choices[0].delta.content for chunk in ask(default_server, stream=True))
    assert streamed == plain.choices[0].message.content != ""


def test_a_full_queue_is_429_until_the_client_that_fills_it_leaves(default_server: Server) -> None:
    whole = total_blocks(default_server)
    endless = {"model": MODEL, "messages": FRUITS, "max_tokens": 1900, "ignore_eos": True, "stream": True}
    answers: queue.Queue[httpx.Response] = queue.Queue()

    def ask_shortly(stream: bool) -> None:
        body = {"model": MODEL, "messages": FRUITS, "max_tokens": 2, "stream": stream}
        with default_server.http as http:
            answers.put(http.post("/v1/chat/completions", json=body))

    clients = [threading.Thread(target=ask_shortly, args=(number % 2 == 0,)) for number in range(6)]
    with default_server.http as http:
        running_one = http.send(http.build_request("POST", "/v1/chat/completions", json=endless), stream=True)
        next(running_one.iter_lines())
        for client in clients:
            client.start()
        # Serve lets one or two of the six wait; it refuses the others while the first request runs.
        refused = [answers.get(timeout=60) for _ in range(3)]
        running_one.close()
    assert [answer.status_code for answer in refused] == [429, 429, 429]
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert {answer.json()["error"]["code"] for answer in refused} == {"rate_limit_exceeded"}
    for client in clients:
        client.join()
    assert 200 in [answers.get_nowait().status_code for _ in range(3)]
    wait_for_stats(default_server, 1.0, running=0, waiting=0, free_blocks=whole)


def test_a_request_is_one_trace_through_ingress_and_replica(default_server: Server, collector: Collector) -> None:
    trace, client_span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    body = {"model": MODEL, "messages": FRUITS, "max_tokens": 8, "temperature": 0}
    with default_server.http as http:
        headers = {"traceparent": f"00-{trace}-{client_span}-01"}
        assert http.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    names = {f"chat {MODEL}", f"generate {MODEL}", "prefill", "decode"}
    deadline = time.monotonic() + 20
    while not names <= (found := collector.spans(trace)).keys():
        assert time.monotonic() < deadline, f"spans so far: {sorted(found)}"
        time.sleep(0.1)
    (request_part, request), (part, sequence) = found[f"chat {MODEL}"], found[f"generate {MODEL}"]
    assert (request_part, part) == ("ingress", MODEL)
    assert request.parent_span_id.hex() == client_span
    assert sequence.parent_span_id == request.span_id
    assert {found[name][1].parent_span_id for name in ("prefill", "decode")} == {sequence.span_id}
