"""The routes that tell about models: their list, their tokenizers."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from serve_app.deadline import Deadline
from serve_app.live_settings import IngressLive
from serve_app.openai_responses import Model, ModelList
from serve_app.request_body import Body, body_of
from serve_app.route_errors import answered
from serve_app.served_models import ServedModels
from serve_app.tokenize_protocol import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest


class ModelRoutes:
    """Their handlers."""

    def __init__(self, models: ServedModels, live: Callable[[], IngressLive], request_timeout_s: float | None) -> None:
        self._models = models
        self._live = live
        self._request_timeout_s = request_timeout_s

    async def list_models(self) -> ModelList:
        return ModelList(data=[model.card() for model in self._models])

    async def show_model(self, model_id: str) -> Model:
        return self._models.named(model_id).card()

    async def tokenize(self, request: Request) -> Response:
        return await answered(self._tokenize(request))

    async def detokenize(self, request: Request) -> Response:
        return await answered(self._detokenize(request))

    async def _tokenize(self, request: Request) -> Response:
        deadline = Deadline.of(self._request_timeout_s)
        body = await self._body(request, TokenizeRequest, deadline)
        model = self._models.named(body.model)
        found = await deadline.within(awaited(model.client.tokenize(body.job())))
        answer = TokenizeAnswer(
            count=len(found.token_ids),
            max_model_len=model.settings.max_model_len,
            tokens=list(found.token_ids),
            token_strs=None if found.strings is None else list(found.strings),
        )
        return _json(answer)

    async def _detokenize(self, request: Request) -> Response:
        deadline = Deadline.of(self._request_timeout_s)
        body = await self._body(request, DetokenizeRequest, deadline)
        model = self._models.named(body.model)
        text = await deadline.within(awaited(model.client.detokenize(tuple(body.tokens))))
        return _json(DetokenizeAnswer(prompt=text))

    async def _body(self, request: Request, kind: type[Body], deadline: Deadline) -> Body:
        return await deadline.within(body_of(request, kind, self._live().max_body_bytes))


async def awaited(awaitable: Any) -> Any:
    """Serve's responses are awaitable, but no coroutines."""
    return await awaitable


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(), media_type="application/json")
