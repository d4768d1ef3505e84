"""Exceptions to HTTP."""

import json

import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError
from starlette.exceptions import HTTPException

from replicas.errors import EngineDeadError, RequestError
from serve_app.errors import RequestTimeoutError, error_answer


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        (
            RequestError("m", "prompt", "context_length_exceeded"),
            400,
            "context_length_exceeded",
            "invalid_request_error",
        ),
        (RequestError("m", "model", "model_not_found"), 404, "model_not_found", "invalid_request_error"),
        (BackPressureError(5, 4, 429, 2.5), 429, "rate_limit_exceeded", "rate_limit_error"),
        (EngineDeadError("m"), 503, "engine_dead", "server_error"),
        (ActorDiedError(), 503, "replica_lost", "server_error"),
        (RequestTimeoutError("m"), 408, "request_timeout", "timeout_error"),
        (HTTPException(405), 405, "method_not_allowed", "invalid_request_error"),
        (ValueError("secret"), 500, "internal_error", "server_error"),
    ],
)
def test_each_error_has_its_answer(error: Exception, status: int, code: str, kind: str) -> None:
    answer = error_answer(error)
    assert (answer.status, answer.code, answer.type) == (status, code, kind)
    assert answer.message
    assert json.loads(answer.body()) == {
        "error": {"message": answer.message, "type": kind, "param": answer.param, "code": code}
    }


def test_an_error_that_crossed_processes_is_the_same() -> None:
    cause = RequestError("too long", "messages", "context_length_exceeded")
    plain = RayTaskError("generate", "traceback", cause)
    for error in (plain, plain.as_instanceof_cause()):
        answer = error_answer(error)
        assert (answer.status, answer.message, answer.param) == (400, "too long", "messages")


def test_an_overload_says_when_to_come_back() -> None:
    assert error_answer(BackPressureError(5, 4, 429, 2.5)).headers == {"Retry-After": "3"}


def test_inner_workings_stay_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for error in (ValueError("secret"), EngineDeadError("secret")):
        assert "secret" not in error_answer(error).message
        assert "secret" in caplog.text
        caplog.clear()


def test_a_message_may_quote_half_a_character() -> None:
    assert json.loads(error_answer(RequestError("got \ud800")).body())["error"]["message"] == "got \ud800"
