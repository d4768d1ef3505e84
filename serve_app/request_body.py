"""The body of a request: read up to a limit, and checked."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from replicas.errors import RequestError
from serve_app.validation_sentences import path_text, sentences

Body = TypeVar("Body", bound=BaseModel)


async def body_of(request: Request, kind: type[Body], max_bytes: int) -> Body:
    """The body as a `kind`. Raises RequestError, for one of more than `max_bytes` before it is read to its end."""
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > max_bytes:
            raise RequestError(
                f"the body has more than {max_bytes} bytes, which this server's max_body_bytes allows",
                code="request_too_large",
            )
        pieces.append(piece)
    return parsed(kind, b"".join(pieces))


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
