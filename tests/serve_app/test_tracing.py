"""Spans of a request and of its sequences, and where they are sent."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from replicas.request import Acceptance, RequestOutput, SamplingParams
from serve_app.generation import GenerationJob
from serve_app.replica_deployment import ModelReplica
from serve_app.replica_metrics import SequenceTimes
from serve_app.replica_spans import NoSequenceSpans, TracedSequences, phases, sequence_spans
from serve_app.request_spans import NoRequestSpans, TracedRequests, request_spans
from serve_app.tracing import build_provider, is_configured, provider_of
from tests.serve_app.local_site import CHAT, Site
from tests.serve_app.trace_collector import Collector, collecting

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "asked"}


class Traced:
    """A site and a replica whose spans are kept."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = provider_of("test", SimpleSpanProcessor(self._exporter))
        self.site = Site(spans=TracedRequests(provider), **options)
        replica: ModelReplica = self.site.client.replica
        replica._spans = TracedSequences(provider, "m")

    @property
    def spans(self) -> dict[str, Any]:
        """By name."""
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def chat(self, **options: Any) -> httpx.Response:
        return self.site.send("POST", "/v1/chat/completions", json=CHAT | options, headers=HEADERS)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_s_spans_hang_together_and_under_the_client_s(stream: bool) -> None:
    traced = Traced()
    answer = traced.chat(stream=stream, max_tokens=20)
    assert answer.status_code == 200
    spans = traced.spans
    assert set(spans) == {"chat m", "generate m", "prefill", "decode"}
    request, sequence = spans["chat m"], spans["generate m"]
    assert {format(span.context.trace_id, "032x") for span in spans.values()} == {TRACE}
    assert format(request.parent.span_id, "016x") == PARENT
    assert sequence.parent.span_id == request.context.span_id
    assert {spans[name].parent.span_id for name in ("prefill", "decode")} == {sequence.context.span_id}
    asked = dict(request.attributes)
    assert asked["gen_ai.operation.name"] == "chat"
    assert asked["gen_ai.request.model"] == "m"
    assert asked["gen_ai.request.max_tokens"] == 20
    assert asked["eyrie.http.request_id"] == "asked"
    # "<user>hi" is a token a byte, half of them cached; five steps of two tokens, one of three drafts accepted in each.
    for span in (request, sequence):
        assert span.attributes["gen_ai.usage.input_tokens"] == 8
        assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 4
        assert span.attributes["gen_ai.usage.output_tokens"] == 10
        assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)
        assert span.attributes["eyrie.speculation.drafted"] == 15
        assert span.attributes["eyrie.speculation.accepted"] == 5
    assert sequence.attributes["eyrie.speculation.mean_acceptance_length"] == 2.0
    assert ("gen_ai.response.time_to_first_chunk" in asked) is stream
    assert 0 <= sequence.attributes["gen_ai.response.time_to_first_chunk"] < 10
    assert request.start_time <= sequence.start_time <= spans["decode"].start_time <= sequence.end_time
    assert all(span.status.status_code.name == "UNSET" for span in spans.values())


def test_without_a_client_s_trace_the_request_begins_one() -> None:
    traced = Traced()
    traced.site.chat()
    request, sequence = traced.spans["chat m"], traced.spans["generate m"]
    assert request.parent is None
    assert sequence.context.trace_id == request.context.trace_id


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_says_how_and_not_what(stream: bool) -> None:
    traced = Traced(pieces=["a", RuntimeError("secret")])
    traced.chat(stream=stream)
    request = traced.spans["chat m"]
    assert request.status.status_code.name == "ERROR"
    assert request.attributes["error.type"] == "RuntimeError"
    assert "secret" not in str(request.to_json())


def test_nothing_of_the_texts_is_traced() -> None:
    traced = Traced(pieces=["privately"])
    traced.chat()
    assert "privately" not in "".join(span.to_json() for span in traced.spans.values())


def output(queue_seconds: float | None, tokens: int = 4) -> RequestOutput:
    return RequestOutput("r", (1,), "", 8, tokens, Acceptance(), "stop", queue_seconds=queue_seconds)


@pytest.mark.parametrize(
    ("queued", "first", "last", "expected"),
    [
        (1.0, 13.0, True, [("queue", 10.0, 11.0), ("prefill", 11.0, 13.0), ("decode", 13.0, 20.0)]),
        # vLLM does not tell.
        (None, 13.0, True, [("prefill", 10.0, 13.0), ("decode", 13.0, 20.0)]),
        # Left before its first token, and before it ran.
        (1.0, None, True, [("queue", 10.0, 11.0), ("prefill", 11.0, 20.0)]),
        (None, None, False, [("queue", 10.0, 20.0)]),
    ],
)
def test_the_phases_of_a_sequence(
    queued: float | None, first: float | None, last: bool, expected: list[tuple[str, float, float]]
) -> None:
    assert phases(SequenceTimes(10.0, first), output(queued) if last else None, 20.0) == expected


@pytest.mark.parametrize(
    ("environment", "configured"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, False),
    ],
)
def test_the_standard_variables_switch_it_on(environment: dict[str, str], configured: bool) -> None:
    assert is_configured(environment) is configured


def test_a_protocol_that_we_do_not_have_is_named(caplog: pytest.LogCaptureFixture) -> None:
    variables = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert build_provider("m", variables) is None
    assert "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: no traces; allowed: http/protobuf" in caplog.text


def test_nothing_is_imported_where_nothing_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert isinstance(request_spans(), NoRequestSpans)
    assert isinstance(sequence_spans("m"), NoSequenceSpans)
    code = (
        "import sys; from serve_app.request_spans import request_spans; from serve_app.replica_spans import "
        "sequence_spans; before = {m for m in sys.modules if 'opentelemetry' in m}; request_spans(); "
        "sequence_spans('m'); print(len({m for m in sys.modules if 'opentelemetry' in m} - before))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "0\n"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def test_a_collector_gets_them(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    spans = sequence_spans("m")
    assert isinstance(spans, TracedSequences)
    trace = (("traceparent", HEADERS["traceparent"]),)
    spans.ended(GenerationJob("r", "hi", SamplingParams(), trace=trace), 0, SequenceTimes(), output(0.0))
    spans.close()
    assert [path for path, _ in collector.posted] == ["/v1/traces"]
    [told] = collector.told
    resource = {attribute.key: attribute.value.string_value for attribute in told.resource.attributes}
    assert (resource["service.name"], resource["eyrie.part"]) == ("eyrie", "m")
    assert resource["deployment.environment.name"] == "test"
    found = told.scope_spans[0].spans
    assert {span.name for span in found} == {"generate m", "queue", "prefill"}
    assert {span.trace_id.hex() for span in found} == {TRACE}
