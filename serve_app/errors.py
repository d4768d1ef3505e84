"""The one layer that turns exceptions into HTTP: a status and OpenAI's error object."""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

from grpc.aio import AioRpcError
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError, WorkerCrashedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from replicas.errors import EngineDeadError, EyrieError, RequestError

logger = logging.getLogger(__name__)

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"

LOSSES = (
    EngineDeadError,
    RayActorError,
    ReplicaUnavailableError,
    WorkerCrashedError,
    # By reference, from a node that is gone.
    NodeDiedError,
    ObjectLostError,
    # Over gRPC, in the middle of a stream, for anything but an unavailable replica.
    AioRpcError,
)
"""How Ray and Serve tell that a replica, its process or its node is gone."""

STATUS_OF_CODE = {"model_not_found": 404, "request_too_large": 413}
"""Of a RequestError; 400 for all others."""


class RequestTimeoutError(EyrieError):
    """A request took longer than the settings' request_timeout_s."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """What a client is told: OpenAI's error object with its status."""

    status: int
    message: str
    type: str = INVALID_REQUEST
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def body(self) -> bytes:
        """JSON, in ASCII: a message may quote what the client sent, even half of a surrogate pair."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def response(self) -> Response:
        """As an answer that has not begun yet."""
        return Response(self.body(), self.status, dict(self.headers), "application/json")


def error_answer(error: BaseException) -> ErrorAnswer:
    """The answer for `error`, which may have crossed processes inside a RayTaskError.

    What is nobody's input is logged here, and its text is kept from the client.
    """
    error = _cause(error)
    match error:
        case RequestError():
            status = STATUS_OF_CODE.get(error.code or "", 400)
            return ErrorAnswer(status, error.message, param=error.param, code=error.code)
        case BackPressureError():
            headers = {"Retry-After": str(math.ceil(error.retry_after_s or 0))}
            message = "too many requests wait for this model; try again later"
            return ErrorAnswer(429, message, "rate_limit_error", code="rate_limit_exceeded", headers=headers)
        case RequestTimeoutError():
            return ErrorAnswer(408, str(error), "timeout_error", code="request_timeout")
        case EngineDeadError():
            return _lost(error, "the model's engine has stopped and is being replaced", "engine_dead")
        case _ if isinstance(error, LOSSES):
            return _lost(error, "the model's replica is gone and is being replaced", "replica_lost")
        case DeploymentUnavailableError():
            return _lost(error, "the model could not be deployed", "model_unavailable")
        case HTTPException():
            return ErrorAnswer(
                error.status_code, error.detail, code=_code(error.status_code), headers=error.headers or {}
            )
        case _:
            logger.error("a request failed", exc_info=error)
            return ErrorAnswer(500, "internal error; the server's log tells more", SERVER_ERROR, code="internal_error")


def is_replica_loss(error: BaseException) -> bool:
    """True if the replica or its engine is gone: another one can do the same work."""
    return isinstance(_cause(error), LOSSES)


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, RayTaskError):
        error = cast("BaseException", error.cause)  # pyright: ignore[reportUnknownMemberType]
    return error


def _lost(error: BaseException, message: str, code: str) -> ErrorAnswer:
    logger.error("%s", error)
    return ErrorAnswer(503, message, SERVER_ERROR, code=code)


async def handle_error(request: Request, error: Exception) -> Response:
    """FastAPI's exception handler."""
    answer = error_answer(error)
    if isinstance(error, HTTPException) and answer.status in (404, 405):
        message = f"{request.method} {request.url.path}: {HTTPStatus(answer.status).phrase}"
        answer = ErrorAnswer(answer.status, message, code=answer.code, headers=answer.headers)
    return answer.response()


def _code(status: int) -> str:
    return HTTPStatus(status).name.lower()
