"""`serve run configs/vllm.yaml`: vLLM in a replica of Ray Serve, asked by the openai client."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from serve_app.checkpoint_paths import PROJECT_ROOT
from serve_app.k_schedule import load_k_schedule
from serve_app.metric_definitions import ACCEPTED_TOKENS, DRAFT_TOKENS, DRAFTS
from tests.integration.exported_metrics import wait_for_figures
from tests.integration.serve_process import SAME_LOOP_MODE, Server, running, steady_ports

pytestmark = pytest.mark.timeout(1200)

QUESTION: Any = [{"role": "user", "content": "Name three fruits and say what each is good for."}]
MODEL = "smollm2-135m"
SCHEDULE = "configs/k_schedules/smollm2-135m-cpu-vllm.yaml"
TOKENS = 40
CLIENTS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The config on a free port, with the K schedule that was measured on vLLM here."""
    config = yaml.safe_load((PROJECT_ROOT / "configs" / "vllm.yaml").read_text(encoding="utf-8"))
    config["http_options"]["port"] = steady_ports(1)[0]
    config["applications"][0]["args"]["models"][0]["k_schedule"] = SCHEDULE
    with running(config, tmp_path_factory.mktemp("serve"), SAME_LOOP_MODE, start_timeout_s=900) as served:
        yield served


def ask(server: Server, **options: Any) -> Any:
    return server.client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=TOKENS, temperature=0, **options
    )


def speculation(usage: Any) -> dict[str, Any]:
    return usage.model_extra["speculation"]


def test_a_stream_is_the_plain_answer_and_both_tell_how_speculation_went(server: Server) -> None:
    plain = ask(server)
    *parts, last = ask(server, stream=True, stream_options={"include_usage": True})
    assert "".join(part.choices[0].delta.content or "" for part in parts) == plain.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == plain.choices[0].finish_reason == "length"
    for usage in (plain.usage, last.usage):
        told = speculation(usage)
        assert (usage.completion_tokens, told["method"], told["num_speculative_tokens"]) == (TOKENS, "eagle3", 3)
        assert 0 < told["accepted"] < told["drafted"] <= 3 * told["steps"]
        # The prefill gives one token, a step one more than it accepts; the last may be cut.
        assert 0 <= 1 + told["steps"] + told["accepted"] - TOKENS <= 3
    assert speculation(last.usage) == speculation(plain.usage)


def test_drafts_reach_prometheus(server: Server) -> None:
    told = speculation(ask(server).usage)
    found = wait_for_figures(server, lambda figures: figures.get(DRAFT_TOKENS.exported, 0) >= told["drafted"])
    drafts, drafted, accepted = (found[metric.exported] for metric in (DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS))
    assert 0 < accepted < drafted
    assert drafted <= 3 * drafts


def test_k_in_force_is_the_measured_schedule_s(server: Server) -> None:
    schedule = load_k_schedule(PROJECT_ROOT / SCHEDULE)
    alone, together = schedule.k_of(1), schedule.k_of(CLIENTS)
    assert alone > together > 0
    told = speculation(ask(server, extra_body={"ignore_eos": True}).usage)
    assert told["drafted"] == pytest.approx(alone * told["steps"], abs=alone)
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [pool.submit(ask, server, extra_body={"ignore_eos": True}) for _ in range(CLIENTS)]
        in_force: set[int] = set()
        while not all(answer.done() for answer in answers):
            in_force.add(server.http.get("/stats").json()[MODEL]["k_in_force"])
    # Before the second comes and after the last but one has gone, one is alone.
    assert together in in_force
    assert in_force <= {0, alone, together}
    for answer in answers:
        told = speculation(answer.result().usage)
        assert told["drafted"] < 0.5 * (alone + together) * told["steps"]


def test_what_vllm_cannot_do_is_a_400(server: Server) -> None:
    with pytest.raises(Exception, match="one K for all requests") as caught:
        ask(server, extra_body={"speculation": {"num_speculative_tokens": 1}})
    assert getattr(caught.value, "status_code", None) == 400


def test_stats_and_health(server: Server) -> None:
    assert server.http.get("/health").json() == {"status": "ok", "models": {MODEL: "ok"}}
    stats = server.http.get("/stats").json()[MODEL]
    assert stats["drafted_tokens"] > stats["accepted_tokens"] > 0, json.dumps(stats)
