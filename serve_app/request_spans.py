"""The ingress's part of a trace: one span a request, the parent of its replicas' spans."""

import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, cast

from replicas.request import SamplingParams
from serve_app.generation import Delta
from serve_app.plain_answers import AnswerHead, Kind
from serve_app.tracing import build_provider, tracer_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

Opened = tuple[Delta, AsyncGenerator[Delta, None]]
OPERATIONS: Mapping[Kind, str] = {"chat": "chat", "completion": "text_completion"}


class RequestSpan(Protocol):
    """One request, whose work passes through here."""

    @property
    def context(self) -> tuple[tuple[str, str], ...]:
        """What the replica's spans belong to (GenerationJob.trace)."""
        ...

    async def whole(self, work: Awaitable[list[Delta]]) -> list[Delta]:
        """The result of `work`, with which the request ends."""
        ...

    async def opening(self, work: Awaitable[Opened]) -> Opened:
        """The result of `work`, after which the request has a first delta."""
        ...

    def watched(self, first: Delta, rest: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """`rest`, with which the request ends."""
        ...

    def close(self) -> None:
        """The request has ended, if it had not before."""
        ...


class RequestSpans(Protocol):
    """Begins them."""

    def request(
        self, kind: Kind, head: AnswerHead, sampling: SamplingParams, headers: Mapping[str, str], request_id: str
    ) -> RequestSpan: ...


class NoRequestSpans:
    """Nothing is traced: it is its own span of each request."""

    context: tuple[tuple[str, str], ...] = ()

    def request(
        self, kind: Kind, head: AnswerHead, sampling: SamplingParams, headers: Mapping[str, str], request_id: str
    ) -> RequestSpan:
        """See RequestSpans."""
        return self

    async def whole(self, work: Awaitable[list[Delta]]) -> list[Delta]:
        """See RequestSpan."""
        return await work

    async def opening(self, work: Awaitable[Opened]) -> Opened:
        """See RequestSpan."""
        return await work

    def watched(self, first: Delta, rest: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """See RequestSpan."""
        return rest

    def close(self) -> None:
        """See RequestSpan."""


class TracedRequests:
    """Spans of `provider`."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._tracer = tracer_of(provider)

    def request(
        self, kind: Kind, head: AnswerHead, sampling: SamplingParams, headers: Mapping[str, str], request_id: str
    ) -> RequestSpan:
        """See RequestSpans. The parent is Serve's span where Serve traces too, else that of the header traceparent."""
        from opentelemetry.trace import SpanKind, get_current_span, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        current, propagator = get_current_span(), TraceContextTextMapPropagator()
        is_inside = current.get_span_context().is_valid
        parent = set_span_in_context(current) if is_inside else propagator.extract(headers)
        span = self._tracer.start_span(
            f"{OPERATIONS[kind]} {head.model}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=request_attributes(kind, head, sampling) | {"eyrie.http.request_id": request_id},
        )
        carrier: dict[str, str] = {}
        propagator.inject(carrier, set_span_in_context(span))
        return TracedRequest(span, tuple(carrier.items()))


class TracedRequest:
    """One open span."""

    def __init__(self, span: "Span", context: tuple[tuple[str, str], ...]) -> None:
        self.context = context
        self._span = span
        self._begin = time.perf_counter()

    async def whole(self, work: Awaitable[list[Delta]]) -> list[Delta]:
        """See RequestSpan."""
        try:
            choices = await work
        except BaseException as error:
            self._end({}, error)
            raise
        self._end({choice.choice: choice for choice in choices}, None)
        return choices

    async def opening(self, work: Awaitable[Opened]) -> Opened:
        """See RequestSpan."""
        try:
            found = await work
        except BaseException as error:
            self._end({}, error)
            raise
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", time.perf_counter() - self._begin)
        return found

    async def watched(self, first: Delta, rest: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """See RequestSpan."""
        lasts = {first.choice: first}
        failure: BaseException | None = None
        try:
            async with aclosing(rest):
                async for delta in rest:
                    lasts[delta.choice] = delta
                    yield delta
        except BaseException as error:
            failure = error
            raise
        finally:
            self._end(lasts, failure)

    def close(self) -> None:
        """See RequestSpan."""
        # A stream that nobody began to read has not ended itself.
        self._end({}, GeneratorExit())

    def _end(self, lasts: Mapping[int, Delta], failure: BaseException | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        if not self._span.is_recording():
            return
        if lasts:
            self._span.set_attributes(cast("Any", answer_attributes([lasts[choice] for choice in sorted(lasts)])))
        if failure is not None:
            name = type(failure).__name__
            self._span.set_attribute("error.type", name)
            # A client that leaves is no error of ours; the text of one may quote the prompt.
            is_departure = name in ("CancelledError", "GeneratorExit", "ClientDisconnect")
            if not is_departure:
                self._span.set_status(Status(StatusCode.ERROR, name))
        self._span.end()


def request_spans() -> RequestSpans:
    """As the environment configures it."""
    provider = build_provider("ingress")
    return NoRequestSpans() if provider is None else TracedRequests(provider)


def request_attributes(kind: Kind, head: AnswerHead, sampling: SamplingParams) -> dict[str, str | int | float]:
    """Names of OpenTelemetry's conventions for generative AI. No text: neither the prompt nor the answer is traced."""
    asked: dict[str, str | int | float | None] = {
        "gen_ai.operation.name": OPERATIONS[kind],
        "gen_ai.provider.name": "eyrie",
        "gen_ai.request.model": head.model,
        "gen_ai.response.model": head.model,
        "gen_ai.response.id": head.id,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.seed": sampling.seed,
    }
    return {name: value for name, value in asked.items() if value is not None}


def answer_attributes(lasts: list[Delta]) -> dict[str, object]:
    """Of the last delta of each choice, in order."""
    return {
        "gen_ai.usage.input_tokens": lasts[0].num_prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": lasts[0].num_cached_tokens,
        "gen_ai.usage.output_tokens": sum(last.num_output_tokens for last in lasts),
        "gen_ai.response.finish_reasons": [last.finish_reason or "abort" for last in lasts],
        "eyrie.speculation.drafted": sum(last.drafted for last in lasts),
        "eyrie.speculation.accepted": sum(last.accepted for last in lasts),
    }
