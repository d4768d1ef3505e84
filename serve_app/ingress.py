"""The HTTP side: every route in one application, and the deployment that serves it."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.exceptions import HTTPException

from replicas.errors import EyrieError
from serve_app import __version__
from serve_app.api_keys import Access, ApiKeyMiddleware
from serve_app.errors import handle_error
from serve_app.generation_routes import GenerationRoutes
from serve_app.live_settings import IngressLive, LiveConfig
from serve_app.metric_definitions import OF_INGRESS
from serve_app.metric_recorder import RayRecorder
from serve_app.model_client import HandleClient
from serve_app.model_routes import ModelRoutes
from serve_app.openai_chat import ChatCompletionRequest
from serve_app.openai_protocol import CompletionRequest
from serve_app.openai_responses import ChatCompletion, Completion
from serve_app.openapi import ERRORS, PROBE_ANSWERS, body_of, document_bodies, streams
from serve_app.probe_routes import ProbeRoutes
from serve_app.request_ids import RequestIdMiddleware
from serve_app.request_spans import NoRequestSpans, RequestSpans, request_spans
from serve_app.served_models import ServedModel, ServedModels
from serve_app.settings import AppSettings
from serve_app.tokenize_protocol import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest

logger = logging.getLogger(__name__)


def build_http_app(
    models: Mapping[str, ServedModel],
    request_timeout_s: float | None,
    access: Access = Access(),  # noqa: B008 (frozen)
    live: Callable[[], IngressLive] = IngressLive,
    gives_request_id_back: bool = True,
    spans: RequestSpans = NoRequestSpans(),  # noqa: B008 (stateless)
) -> FastAPI:
    """The ASGI application. Whatever goes wrong in it is answered in OpenAI's shape."""
    app = FastAPI(title="Eyrie", version=__version__, responses=dict(ERRORS))
    served = ServedModels(models)
    probes, about = ProbeRoutes(served), ModelRoutes(served, live, request_timeout_s)
    generation = GenerationRoutes(served, live, request_timeout_s, spans)
    app.get("/health", responses=dict(PROBE_ANSWERS))(probes.health)
    app.get("/ready", responses=dict(PROBE_ANSWERS))(probes.ready)
    app.get("/version")(probes.version)
    app.get("/stats")(probes.stats)
    app.get("/v1/models")(about.list_models)
    app.get("/v1/models/{model_id:path}")(about.show_model)
    bodies = (ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
    chat, completion, tokenize, detokenize = (body_of(kind) for kind in bodies)
    post, may_stream = app.post, dict[int | str, dict[str, Any]]({200: streams()})
    post("/v1/chat/completions", response_model=ChatCompletion, responses=may_stream, openapi_extra=chat)(
        generation.chat_completions
    )
    post("/v1/completions", response_model=Completion, responses=may_stream, openapi_extra=completion)(
        generation.completions
    )
    post("/tokenize", response_model=TokenizeAnswer, openapi_extra=tokenize)(about.tokenize)
    post("/detokenize", response_model=DetokenizeAnswer, openapi_extra=detokenize)(about.detokenize)
    document_bodies(app, bodies, list(models))
    for kind in (HTTPException, EyrieError, RayError, RayServeException, Exception):
        app.exception_handler(kind)(handle_error)
    app.add_middleware(ApiKeyMiddleware, access=access)
    # The last one added is the first to see a request.
    app.add_middleware(RequestIdMiddleware, gives_back=gives_request_id_back)
    return app


class Ingress:
    """The ingress deployment, which `serve.ingress()` wraps."""

    def __init__(self, settings: AppSettings, handles: Mapping[str, Any], access: Access) -> None:
        created = int(time.time())
        self._models = {
            model.id: ServedModel(model, HandleClient(handles[model.id]), created, RayRecorder(OF_INGRESS, model.id))
            for model in settings.models
        }
        self._request_timeout_s = settings.request_timeout_s
        self._access = access
        self._live = LiveConfig(IngressLive, lambda _: None)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Serve calls it with the deployment's user_config: at the start, and when that changes (IngressLive)."""
        self._live.change(user_config)

    def check_health(self) -> None:
        """Serve calls it, for the first time when the ingress is ready."""
        self._live.started()

    def __serve_build_asgi_app__(self) -> FastAPI:
        # Serve's proxy makes the request ids, and gives them back.
        return build_http_app(
            self._models,
            self._request_timeout_s,
            self._access,
            lambda: self._live.current,
            gives_request_id_back=False,
            spans=request_spans(),
        )
