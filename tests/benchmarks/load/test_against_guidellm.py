"""The comparison with guidellm, without guidellm: what it is asked, what is read of its report, and the verdict."""

import json
from pathlib import Path

import pytest

from benchmarks.load import against_guidellm
from benchmarks.load.against_guidellm import DIFFERENT, TimedAnswer, answers_of_report, main, ratios, scenario
from benchmarks.load.chat_client import ChatSettings
from benchmarks.workloads import Prompt
from replicas.errors import ConfigError
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
    answers = [
        {"prompt_tokens": 7, "inter_token_latency_ms": 20.0, "time_per_output_token_ms": 90.0},
        {"prompt_tokens": 8, "inter_token_latency_ms": None},
    ]
    found = answers_of_report({"benchmarks": [{"requests": {"successful": answers}}]})
    assert found == [TimedAnswer(7, 0.02), TimedAnswer(8, None)]


def test_a_ratio_is_of_one_prompt_between_two_of_our_answers_to_it() -> None:
    before = [TimedAnswer(7, 0.010), TimedAnswer(8, 0.040), TimedAnswer(9, None)]
    after = [TimedAnswer(7, 0.030), TimedAnswer(8, 0.040), TimedAnswer(9, 0.02)]
    theirs = [TimedAnswer(7, 0.020), TimedAnswer(8, 0.050), TimedAnswer(9, 0.02)]
    assert ratios(before, theirs, after) == pytest.approx([1.0, 1.25])
    with pytest.raises(ConfigError, match=r"guidellm's prompts have \[8, 7, 9\] tokens and ours \[7, 8, 9\]"):
        ratios(before, [theirs[1], theirs[0], theirs[2]], after)
    with pytest.raises(ConfigError, match="not to the same prompts"):
        ratios(before, theirs[:2], after)


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.2, DIFFERENT), (0.8, DIFFERENT)])
def test_more_than_five_per_cent_apart_is_a_status(
    factor: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The machine gets slower from round to round: what is compared lies next to each other.
    clock = iter([9.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr(against_guidellm, "by_us", lambda *_: [TimedAnswer(7, 0.01 * next(clock))] * 3)
    rounds = iter([1.5, 2.5])
    monkeypatch.setattr(against_guidellm, "by_guidellm", lambda *_: [TimedAnswer(7, 0.01 * factor * next(rounds))] * 3)
    with OpenAiServer().running() as server:
        assert main(["--url", server.url, "--limit", "3", "--rounds", "2", "--python", "python"]) == status
    seen = json.loads(capsys.readouterr().out)
    assert (seen["answers"], seen["tpot_ms"], seen["ratio"]) == (6, [10.0, 20.0, 30.0], factor)


def test_answers_that_have_no_tpot_do_not_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("by_us", "by_guidellm"):
        monkeypatch.setattr(against_guidellm, name, lambda *_: [TimedAnswer(7, None)])
    with OpenAiServer().running() as server:
        assert main(["--url", server.url, "--rounds", "1", "--python", "python"]) == 1
    assert "no answer has two tokens" in capsys.readouterr().err
