"""The HTTP side: OpenAI's routes over the models' clients."""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar
from uuid import uuid4

from fastapi import FastAPI
from pydantic import BaseModel, ValidationError
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from replicas.errors import EyrieError, RequestError
from serve_app.errors import error_answer, handle_error
from serve_app.generation import Delta, GenerationJob
from serve_app.model_client import HandleClient, ModelClient, deltas
from serve_app.openai_logprobs import chat_logprobs, completion_logprobs
from serve_app.openai_protocol import ChatCompletionRequest, CompletionRequest
from serve_app.openai_responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    Model,
    ModelList,
    ModelSpeculation,
    usage_of,
)
from serve_app.settings import AppSettings, ModelSettings
from serve_app.sse import ChunkWriter, EventStream, events
from serve_app.validation_sentences import path_text, sentences

PROBE_TIMEOUT_S = 2.0
"""A replica that does not answer within it is busy: its health is for Serve's own checks to judge."""

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as the routes see it."""

    settings: ModelSettings
    client: ModelClient
    created: int

    @property
    def method(self) -> str | None:
        """None without a drafter."""
        speculative = self.settings.speculative_config
        return None if speculative is None else speculative.method

    def card(self) -> Model:
        """Its entry in /v1/models."""
        speculative = self.settings.speculative_config
        return Model(
            id=self.settings.id,
            created=self.created,
            max_model_len=self.settings.max_model_len,
            speculation=speculative
            and ModelSpeculation(method=speculative.method, num_speculative_tokens=speculative.num_speculative_tokens),
        )


class Routes:
    """The handlers of every route."""

    def __init__(self, models: Mapping[str, ServedModel], request_timeout_s: float | None) -> None:
        self._models = models
        self._request_timeout_s = request_timeout_s
        self._seen: set[str] = set()
        """Models that have answered a probe: until then silence means that they are starting."""

    async def list_models(self) -> ModelList:
        return ModelList(data=[model.card() for model in self._models.values()])

    async def show_model(self, model_id: str) -> Model:
        return self._model(model_id).card()

    async def chat_completions(self, request: Request) -> Response:
        body = parsed(ChatCompletionRequest, await request.body())
        return await _answered(self._generate(request, body, "chat"))

    async def completions(self, request: Request) -> Response:
        body = parsed(CompletionRequest, await request.body())
        return await _answered(self._generate(request, body, "completion"))

    async def stats(self) -> Response:
        """Figures of one replica of each model, as of its last step: requests running and waiting, free KV blocks."""
        return await _answered(self._stats())

    async def _stats(self) -> Response:
        return JSONResponse({model_id: await model.client.stats() for model_id, model in self._models.items()})

    async def health(self) -> JSONResponse:
        """200 if each model takes requests, though it may be busy; 503 while one is starting or down."""
        probes = [self._probe(model) for model in self._models.values()]
        states = dict(zip(self._models, await asyncio.gather(*probes), strict=True))
        healthy = not {"starting", "down"} & set(states.values())
        return JSONResponse({"status": "ok" if healthy else "unavailable", "models": states}, 200 if healthy else 503)

    async def _probe(self, model: ServedModel) -> Literal["ok", "busy", "idle", "starting", "down"]:
        if model.settings.autoscaling.min_replicas == 0:
            return "idle"  # A call would start a replica: a load balancer's probes would keep it alive for ever.
        try:
            await asyncio.wait_for(_awaited(model.client.stats()), PROBE_TIMEOUT_S)
        except (asyncio.TimeoutError, BackPressureError):
            return "busy" if model.settings.id in self._seen else "starting"
        except (EyrieError, RayError, RayServeException):
            return "down"
        self._seen.add(model.settings.id)
        return "ok"

    def _model(self, model_id: str) -> ServedModel:
        model = self._models.get(model_id)
        if model is None:
            known = ", ".join(self._models)
            raise RequestError(f"the model {model_id!r} does not exist; allowed: {known}", "model", "model_not_found")
        return model

    async def _generate(
        self, request: Request, body: ChatCompletionRequest | CompletionRequest, kind: Literal["chat", "completion"]
    ) -> Response:
        model = self._model(body.model)
        prompt, sampling = body.prompt_and_sampling()
        request_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{uuid4().hex}"
        created = int(time.time())
        job = GenerationJob(request_id, prompt, sampling)
        stream = deltas(model.client, job, self._request_timeout_s)
        if not body.stream:
            whole = await unless_disconnected(request, _collect(stream))
            return _plain_answer(kind, job, created, body.model, whole, model.method)
        # The first step decides the status: a prompt that is too long, a full queue, a dead engine.
        first = await unless_disconnected(request, _first(stream))
        head = {
            "id": request_id,
            "object": "chat.completion.chunk" if kind == "chat" else "text_completion",
            "created": created,
            "model": body.model,
        }
        writer = ChunkWriter(kind, head, body.include_usage)
        return EventStream(events(first, stream, writer, body.include_usage, model.method), stream)


def build_http_app(models: Mapping[str, ServedModel], request_timeout_s: float | None) -> FastAPI:
    """The ASGI application. Whatever goes wrong in it is answered in OpenAI's shape."""
    app = FastAPI(title="Eyrie")
    routes = Routes(models, request_timeout_s)
    app.get("/health")(routes.health)
    app.get("/stats")(routes.stats)
    app.get("/v1/models")(routes.list_models)
    app.get("/v1/models/{model_id:path}")(routes.show_model)
    for path, handler, body, answer in (
        ("/v1/chat/completions", routes.chat_completions, ChatCompletionRequest, ChatCompletion),
        ("/v1/completions", routes.completions, CompletionRequest, Completion),
    ):
        content = {"application/json": {"schema": body.model_json_schema()}}
        app.post(path, response_model=answer, openapi_extra={"requestBody": {"content": content}})(handler)
    app.exception_handler(ClientDisconnect)(_nobody_listens)
    for kind in (HTTPException, EyrieError, RayError, RayServeException, Exception):
        app.exception_handler(kind)(handle_error)
    return app


class Ingress:
    """The ingress deployment, which `serve.ingress()` wraps."""

    def __init__(self, settings: AppSettings, handles: Mapping[str, Any]) -> None:
        created = int(time.time())
        self._models = {
            model.id: ServedModel(model, HandleClient(handles[model.id]), created) for model in settings.models
        }
        self._request_timeout_s = settings.request_timeout_s

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_http_app(self._models, self._request_timeout_s)


def parsed(kind: type[Body], content: bytes) -> Body:
    """The body of a request, whatever its Content-Type: `curl -d` alone sends none that says JSON.

    Raises RequestError with every problem's path; `param` is the first one's.
    """
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise RequestError(f"the body is not JSON: {first['msg']}", code="invalid_json") from None
        param = path_text(first["loc"]) if first["loc"] else None
        raise RequestError("; ".join(sentences(error, kind)), param, "invalid_value") from None


async def _answered(work: Coroutine[Any, Any, Response]) -> Response:
    try:
        return await work
    except (BackPressureError, DeploymentUnavailableError) as error:
        # Serve puts handlers of its own for these two into the app, which would answer in plain text.
        return error_answer(error).response()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away first. Raises ClientDisconnect then."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _awaited(awaitable: Any) -> Any:
    """Serve's responses are awaitable, but no coroutines."""
    return await awaitable


async def _first(stream: AsyncGenerator[Delta, None]) -> Delta:
    return await stream.__anext__()


async def _collect(stream: AsyncGenerator[Delta, None]) -> Delta:
    """All deltas as one: the last, with the whole text and every token's score."""
    found: list[Delta] = []
    async with aclosing(stream):
        async for delta in stream:
            found.append(delta)
    last = found[-1]  # deltas() raises rather than end without one.
    scores = None if last.scores is None else tuple(score for delta in found for score in delta.scores or ())
    return replace(last, text="".join(delta.text for delta in found), scores=scores)


def _plain_answer(
    kind: Literal["chat", "completion"],
    job: GenerationJob,
    created: int,
    model: str,
    whole: Delta,
    method: str | None,
) -> Response:
    usage, scores = usage_of(whole, method), whole.scores
    reason = whole.finish_reason or "stop"
    answer: ChatCompletion | Completion
    if kind == "chat":
        message = AssistantMessage(content=whole.text)
        logprobs = None if scores is None else chat_logprobs(scores)
        choice = ChatChoice(message=message, logprobs=logprobs, finish_reason=reason)
        answer = ChatCompletion(id=job.request_id, created=created, model=model, choices=[choice], usage=usage)
    else:
        columns = None if scores is None else completion_logprobs(scores)
        plain_choice = CompletionChoice(text=whole.text, logprobs=columns, finish_reason=reason)
        answer = Completion(id=job.request_id, created=created, model=model, choices=[plain_choice], usage=usage)
    return Response(answer.model_dump_json(), media_type="application/json")


async def _nobody_listens(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)
