"""The OpenAPI document: we parse bodies ourselves, so FastAPI is told what they are, and which errors there may be."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REFERENCE = "#/components/schemas/{model}"
JSON = "application/json"
EVENTS = "text/event-stream"


class ErrorBody(BaseModel):
    """Of an ErrorResponse."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """OpenAI's error object: the answer with every status from 400 on."""

    error: ErrorBody


class States(BaseModel):
    """Answer of /health and /ready."""

    status: Literal["ok", "unavailable"]
    models: dict[str, Literal["ok", "busy", "idle", "starting", "down"]]


ERRORS: Mapping[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request is wrong, or asks for what cannot be honoured."},
    401: {"model": ErrorResponse, "description": "No API key, or a wrong one."},
    403: {"model": ErrorResponse, "description": "The server has no API keys, and the client is another machine."},
    404: {"model": ErrorResponse, "description": "No such model or path."},
    405: {"model": ErrorResponse, "description": "No such method of the path."},
    408: {"model": ErrorResponse, "description": "The request took longer than the server allows."},
    413: {"model": ErrorResponse, "description": "The body is larger than the server allows."},
    429: {"model": ErrorResponse, "description": "Too many requests wait; Retry-After says when to come back."},
    500: {"model": ErrorResponse, "description": "A fault of the server."},
    503: {"model": ErrorResponse, "description": "The model's replica is starting, lost or being replaced."},
}
PROBE_ANSWERS: Mapping[int | str, dict[str, Any]] = {200: {"model": States}, 503: {"model": States}}


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that takes a `kind`."""
    content = {JSON: {"schema": {"$ref": REFERENCE.format(model=kind.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def streams() -> dict[str, Any]:
    """The `responses` entry of a route that may stream."""
    # Of each event, as OpenAPI 3.2 has it and FastAPI writes it for its own streams: `schema` would mean the whole.
    event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
    return {"content": {EVENTS: {"itemSchema": event}}, "description": "The answer, or its chunks as events."}


def _one_of(model_ids: Sequence[str], is_required: bool) -> dict[str, Any]:
    known = {"type": "string", "enum": list(model_ids)}
    return known if is_required else {"anyOf": [known, {"type": "null"}]}


def document_bodies(app: FastAPI, kinds: Sequence[type[BaseModel]], model_ids: Sequence[str]) -> None:
    """Add the schemas of `kinds`, and of what they hold, to the document of `app`; their `model` is one of the ids."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        document = described()
        _, own = models_json_schema([(kind, "validation") for kind in kinds], ref_template=REFERENCE)
        for kind in kinds:
            is_required = kind.model_fields["model"].is_required()
            own["$defs"][kind.__name__]["properties"]["model"] = _one_of(model_ids, is_required)
        schemas = document["components"]["schemas"]
        for name, schema in own["$defs"].items():
            if schemas.setdefault(name, schema) != schema:
                raise ValueError(f"two different models are named {name}")
        return document

    app.openapi = openapi
