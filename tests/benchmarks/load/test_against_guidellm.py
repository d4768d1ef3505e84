"""The comparison with guidellm, without guidellm: what it is asked, what is read of its report, and the verdict."""

import json
from pathlib import Path

import pytest

from benchmarks.load import against_guidellm
from benchmarks.load.against_guidellm import DIFFERENT, main, scenario, tpots_of_report
from benchmarks.load.chat_client import ChatSettings
from benchmarks.workloads import Prompt
from serve_app.openai_chat import ChatCompletionRequest
from tests.benchmarks.load.openai_server import OpenAiServer


def test_guidellm_is_asked_for_the_same_requests_as_ours(tmp_path: Path) -> None:
    prompts = [Prompt("", "one"), Prompt("", "two")]
    spec = scenario("http://server", ChatSettings("tiny", 9), prompts, tmp_path / "report.json")["spec"]
    backend = spec["backend"]
    assert (backend["target"], backend["model"], backend["max_tokens"]) == ("http://server", "tiny", 9)
    assert spec["data"][0]["data"] == [{"prompt": "one"}, {"prompt": "two"}]
    assert spec["constraints"] == [{"kind": "max_requests", "count": 2}]
    # What guidellm 0.8.1 makes of it must be a request that our server takes.
    body = {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_completion_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}],
        **backend["extras"]["body"],
    }
    request = ChatCompletionRequest.model_validate(body)
    assert request.include_usage


def test_tpot_is_guidellms_inter_token_latency() -> None:
    answers = [{"inter_token_latency_ms": 20.0, "time_per_output_token_ms": 90.0}, {"inter_token_latency_ms": None}]
    assert tpots_of_report({"benchmarks": [{"requests": {"successful": answers}}]}) == [0.02]


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.2, DIFFERENT), (0.8, DIFFERENT)])
def test_more_than_five_per_cent_apart_is_a_status(
    factor: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(against_guidellm, "by_us", lambda *_: [0.03, 0.01, 0.02])
    monkeypatch.setattr(against_guidellm, "by_guidellm", lambda *_: [factor * 0.02] * 3)
    with OpenAiServer().running() as server:
        assert main(["--url", server.url, "--limit", "3", "--python", "python"]) == status
    seen = json.loads(capsys.readouterr().out)
    assert (seen["answers"], seen["tpot_ms"], seen["ratio"]) == (3, 20.0, factor)


def test_answers_that_are_missing_do_not_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(against_guidellm, "by_us", lambda *_: [0.02] * 3)
    monkeypatch.setattr(against_guidellm, "by_guidellm", lambda *_: [0.02] * 2)
    with OpenAiServer().running() as server:
        assert main(["--url", server.url, "--limit", "3", "--python", "python"]) == 1
    assert "guidellm has the TPOT of 2 answers, we of 3" in capsys.readouterr().err
