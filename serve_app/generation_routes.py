"""The routes that generate: chat and plain completions, streamed or whole."""

import time
from collections.abc import AsyncGenerator, Callable
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from replicas.errors import RequestError
from serve_app.deadline import Deadline
from serve_app.disconnects import unless_disconnected
from serve_app.generation import Delta, GenerationJob
from serve_app.live_settings import IngressLive
from serve_app.metric_definitions import BROKEN, RETRIES
from serve_app.model_client import deltas
from serve_app.openai_chat import ChatCompletionRequest
from serve_app.openai_protocol import CompletionRequest
from serve_app.plain_answers import AnswerHead, Kind, collected, plain_answer
from serve_app.request_body import body_of
from serve_app.request_ids import http_request_id
from serve_app.request_spans import RequestSpans
from serve_app.retries import opened, retried
from serve_app.route_errors import answered
from serve_app.served_models import ServedModels
from serve_app.sse import ChunkWriter, EventStream, events
from serve_app.tool_call_stream import with_tool_calls


class GenerationRoutes:
    """Their handlers."""

    def __init__(
        self,
        models: ServedModels,
        live: Callable[[], IngressLive],
        request_timeout_s: float | None,
        spans: RequestSpans,
    ) -> None:
        self._models = models
        self._spans = spans
        self._live = live
        self._request_timeout_s = request_timeout_s

    async def chat_completions(self, request: Request) -> Response:
        return await answered(self._generate(request, ChatCompletionRequest, "chat"))

    async def completions(self, request: Request) -> Response:
        return await answered(self._generate(request, CompletionRequest, "completion"))

    async def _generate(
        self, request: Request, body_kind: type[ChatCompletionRequest | CompletionRequest], kind: Kind
    ) -> Response:
        deadline, live = Deadline.of(self._request_timeout_s), self._live()
        body = await deadline.within(body_of(request, body_kind, live.max_body_bytes))
        model = self._models.named(body.model)
        prompt, sampling = body.prompt_and_sampling(model.settings.sampling_defaults)
        num_choices = body.n or 1
        if num_choices > live.max_choices:
            raise RequestError(f"n is {num_choices}; this server allows 1 to {live.max_choices}", "n", "invalid_value")
        prefix = "chatcmpl" if kind == "chat" else "cmpl"
        head = AnswerHead(f"{prefix}-{uuid4().hex}", int(time.time()), body.model)
        tools = body.offered_tools
        request_id = http_request_id.get()
        span = self._spans.request(kind, head, sampling, request.headers, request_id)
        job = GenerationJob(head.id, prompt, sampling, num_choices, request_id, tools, span.context)

        def begin(job: GenerationJob) -> AsyncGenerator[Delta, None]:
            stream = deltas(model.client, job, deadline)
            return with_tool_calls(stream, num_choices) if tools else stream

        def on_retry() -> None:
            model.count(RETRIES)

        if not body.stream:
            whole = retried(job, deadline, lambda job: collected(begin(job), num_choices), on_retry)
            choices = await span.whole(unless_disconnected(request, whole))
            return plain_answer(kind, head, choices, model.method)
        # The first step decides the status: a prompt that is too long, a full queue, a dead engine.
        opening = retried(job, deadline, lambda job: opened(begin(job)), on_retry)
        first, stream = await span.opening(unless_disconnected(request, opening))
        writer = ChunkWriter(kind, head, body.include_usage, body.continuous_usage, model.method)
        rest = span.watched(first, stream)
        content = events(first, rest, writer, body.include_usage, lambda: model.count(BROKEN))
        return EventStream(content, stream, span.close)
