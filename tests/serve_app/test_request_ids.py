"""x-request-id: in, out, and in the log."""

import json
import logging
import sys

import pytest

from replicas.errors import EngineDeadError
from serve_app.json_logs import JsonFormatter
from serve_app.live_settings import IngressLive, LiveConfig
from serve_app.logs import _OwnHandler
from serve_app.request_ids import RequestIdFilter
from tests.serve_app.local_site import CHAT, Site

PATH = "/v1/chat/completions"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.handler.addFilter(RequestIdFilter())
    caplog.handler.setFormatter(logging.Formatter("[%(request_id)s] %(message)s"))
    caplog.set_level(logging.INFO, "serve_app")
    return caplog


@pytest.mark.parametrize("stream", [False, True])
def test_a_given_id_is_given_back(stream: bool) -> None:
    answer = Site().send("POST", PATH, json=CHAT | {"stream": stream}, headers={"X-Request-ID": "abc-1"})
    assert answer.headers.get_list("x-request-id") == ["abc-1"]


def test_others_get_one_each() -> None:
    site = Site()
    first, second = (site.send("GET", "/health").headers["x-request-id"] for _ in range(2))
    assert len(first) == 32
    assert first != second


@pytest.mark.parametrize("pieces", [[EngineDeadError("x")], [ValueError("x")]])
def test_errors_carry_it_too(pieces: list[Exception], lines: pytest.LogCaptureFixture) -> None:
    site = Site(pieces=pieces)
    answer = site.send("POST", PATH, json=CHAT, headers={"x-request-id": "failing"})
    assert answer.status_code >= 500
    assert answer.headers["x-request-id"] == "failing"
    assert "[failing]" in lines.text
    assert site.send("GET", "/nothing", headers={"x-request-id": "lost"}).headers["x-request-id"] == "lost"


def test_the_replicas_log_says_how_the_request_ended(lines: pytest.LogCaptureFixture) -> None:
    answer = Site().send("POST", PATH, json=CHAT, headers={"x-request-id": "abc-2"})
    [line] = [line for line in lines.text.splitlines() if "output tokens" in line]
    assert line.startswith(f"[abc-2] {answer.json()['id']}: stop after ")
    assert line.endswith("8 prompt tokens (4 cached), 10 output tokens, 5 of 15 drafts accepted in 5 steps")


@pytest.mark.parametrize("given", ["", "x" * 129, "a\tb"])
def test_an_id_that_would_spoil_a_log_is_refused(given: str) -> None:
    answer = Site().send("POST", PATH, json=CHAT, headers={"x-request-id": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-request-id")
    assert len(answer.headers["x-request-id"]) == 32


def test_a_json_line_has_the_id_the_figures_and_any_exception(lines: pytest.LogCaptureFixture) -> None:
    lines.handler.setFormatter(JsonFormatter())
    Site().send("POST", PATH, json=CHAT, headers={"x-request-id": "abc-3"})
    Site(pieces=[ValueError("two\nlines")]).send("POST", PATH, json=CHAT, headers={"x-request-id": "abc-4"})
    records = [json.loads(line) for line in lines.text.splitlines()]
    [ended] = [record for record in records if "finish_reason" in record]
    assert (ended["request_id"], ended["level"], ended["logger"]) == ("abc-3", "INFO", "serve_app.replica_deployment")
    assert (ended["finish_reason"], ended["output_tokens"], ended["drafted"], ended["accepted"]) == ("stop", 10, 15, 5)
    [failed] = [record for record in records if "exception" in record]
    assert (failed["request_id"], failed["level"]) == ("abc-4", "ERROR")
    assert "ValueError: two\nlines" in failed["exception"]


def test_the_format_changes_while_requests_run(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("serve_app.test")
    live = LiveConfig(IngressLive, lambda _: None)
    for form in ("text", "json"):
        live.change({"log_format": form})
        [handler] = [handler for handler in logging.getLogger("serve_app").handlers if isinstance(handler, _OwnHandler)]
        handler.setStream(sys.stderr)
        logger.info("said")
    live.change({})
    text, as_json = [line for line in capsys.readouterr().err.splitlines() if "said" in line]
    assert text.endswith("INFO serve_app.test [-] said")
    assert json.loads(as_json)["message"] == "said"
