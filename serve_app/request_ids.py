"""x-request-id: taken from the client or made here, given back, and written into every line of the log."""

import logging
from contextvars import ContextVar
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from replicas.errors import RequestError
from serve_app.errors import error_answer

HEADER = "x-request-id"
MAX_LENGTH = 128

http_request_id: ContextVar[str] = ContextVar("http_request_id", default="-")
"""Of the request that the running task works for."""


class RequestIdMiddleware:
    """Gives each request its id. Serve's proxy does the same before it, and then gives the id back by itself."""

    def __init__(self, app: ASGIApp, gives_back: bool) -> None:
        self._app = app
        self._gives_back = gives_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER)
        is_usable = given is not None and 0 < len(given) <= MAX_LENGTH and given.isascii() and given.isprintable()
        request_id = given if given is not None and is_usable else uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        http_request_id.set(request_id)
        reply = send_with_id if self._gives_back else send
        if given is not None and not is_usable:
            error = RequestError(f"{HEADER} has to be 1 to {MAX_LENGTH} visible ASCII characters", HEADER)
            await error_answer(error).response()(scope, receive, reply)
            return
        await self._app(scope, receive, reply)


class RequestIdFilter(logging.Filter):
    """Adds `request_id` to every record of a handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = http_request_id.get()
        return True
