"""The replica's part of a trace: a span a sequence, and one for each phase that it went through."""

import time
from typing import TYPE_CHECKING, Protocol

from replicas.request import RequestOutput
from serve_app.generation import GenerationJob
from serve_app.replica_metrics import SequenceTimes
from serve_app.tracing import build_provider, tracer_of, unix_ns

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


class SequenceSpans(Protocol):
    """Told of each sequence when it has ended."""

    def ended(self, job: GenerationJob, choice: int, times: SequenceTimes, last: RequestOutput | None) -> None:
        """`last` is its last news; None: there was none."""
        ...

    def close(self) -> None:
        """Send what waits to be sent."""
        ...


class NoSequenceSpans:
    """Nothing is traced."""

    def ended(self, job: GenerationJob, choice: int, times: SequenceTimes, last: RequestOutput | None) -> None:
        """See SequenceSpans."""

    def close(self) -> None:
        """See SequenceSpans."""


class TracedSequences:
    """Spans that are made at the end, with the times of before: a step costs nothing."""

    def __init__(self, provider: "TracerProvider", model: str) -> None:
        self._provider = provider
        self._tracer = tracer_of(provider)
        self._model = model

    def ended(self, job: GenerationJob, choice: int, times: SequenceTimes, last: RequestOutput | None) -> None:
        """See SequenceSpans."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        now = time.perf_counter()
        parent = TraceContextTextMapPropagator().extract(dict(job.trace))
        span = self._tracer.start_span(
            f"generate {self._model}",
            context=parent,
            kind=SpanKind.SERVER,
            start_time=unix_ns(times.begin),
            attributes={
                "gen_ai.request.model": self._model,
                "eyrie.request.id": job.request_id,
                "eyrie.choice": choice,
            },
        )
        inside = set_span_in_context(span)
        for name, begin, end in phases(times, last, now):
            self._tracer.start_span(name, inside, start_time=unix_ns(begin)).end(unix_ns(end))
        if last is not None:
            span.set_attributes(sequence_attributes(times, last))
            if last.finish_reason == "error":
                span.set_status(Status(StatusCode.ERROR, "no token could go on with the grammar"))
        span.end(unix_ns(now))

    def close(self) -> None:
        """See SequenceSpans."""
        self._provider.shutdown()


def sequence_spans(model: str) -> SequenceSpans:
    """As the environment configures it."""
    provider = build_provider(model)
    return NoSequenceSpans() if provider is None else TracedSequences(provider, model)


def phases(times: SequenceTimes, last: RequestOutput | None, now: float) -> list[tuple[str, float, float]]:
    """(Name, begin, end) of queue, prefill and decode as far as the sequence went, on time.perf_counter.

    An engine that does not tell when a sequence left its queue has the queue in the prefill.
    """
    waited = last.queue_seconds if last is not None else None
    if waited is None and last is None:
        return [("queue", times.begin, now)]
    first = now if times.first is None else times.first
    started = times.begin if waited is None else min(times.begin + waited, first)
    found = [] if waited is None else [("queue", times.begin, started)]
    found.append(("prefill", started, first))
    return found if times.first is None else [*found, ("decode", first, now)]


def sequence_attributes(times: SequenceTimes, last: RequestOutput) -> dict[str, str | int | float | list[str]]:
    """Names of OpenTelemetry's conventions for generative AI; `eyrie.` where these have none."""
    acceptance = last.acceptance
    attributes: dict[str, str | int | float | list[str]] = {
        "gen_ai.usage.input_tokens": last.num_prompt_tokens,
        "gen_ai.usage.output_tokens": last.num_output_tokens,
        "gen_ai.usage.cache_read.input_tokens": last.num_cached_tokens,
        "gen_ai.response.finish_reasons": [last.finish_reason or "abort"],
        "eyrie.speculation.steps": acceptance.steps,
        "eyrie.speculation.drafted": acceptance.drafted,
        "eyrie.speculation.accepted": acceptance.accepted,
        "eyrie.speculation.mean_acceptance_length": acceptance.mean_acceptance_length,
    }
    if times.first is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = times.first - times.begin
    return attributes
