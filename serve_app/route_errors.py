"""Errors of a route's own work, answered before anybody else's handler sees them."""

from collections.abc import Coroutine
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from serve_app.errors import error_answer


async def answered(work: Coroutine[Any, Any, Response]) -> Response:
    """What `work` answers, or what its error does.

    Serve puts handlers of its own for some errors into the app, which would answer in plain text, and Starlette's for
    all others lies outside of the middleware that gives the request id back.
    """
    try:
        return await work
    except ClientDisconnect:
        return Response(status_code=499)  # Nobody reads it.
    except Exception as error:
        return error_answer(error).response()
