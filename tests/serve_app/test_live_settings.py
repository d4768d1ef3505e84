"""What changes while requests run."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicas.errors import ConfigError, RequestError
from replicas.request import SamplingParams
from serve_app.api_keys import Access
from serve_app.exchangeable_k import ExchangeableK
from serve_app.generation import Delta, GenerationJob
from serve_app.ingress import Ingress
from serve_app.settings import AppSettings, ModelSettings
from tests.serve_app.fake_engine import LocalClient


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    yield
    for name in ("serve_app", "replicas"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def client(folder: Path, k: int = 3) -> LocalClient:
    settings: dict[str, Any] = {"id": "m", "model": str(folder), "max_model_len": 32}
    if k:
        settings["speculative_config"] = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": k}
    return LocalClient(ModelSettings.model_validate(settings), ["a", "b"])


def run(local: LocalClient, prompt: str = "hi", **sampling: Any) -> list[Delta]:
    async def collect() -> list[Delta]:
        return [delta async for delta in local.replica.generate(GenerationJob("r", prompt, SamplingParams(**sampling)))]

    return asyncio.run(collect())


def serves(local: LocalClient) -> None:
    asyncio.run(local.replica.check_health())


@pytest.mark.parametrize("before_the_start", [True, False])
def test_k_changes_in_the_engine_that_runs(tmp_path: Path, before_the_start: bool) -> None:
    local = client(tmp_path)
    policy = local.engine.k_policy
    if not before_the_start:
        serves(local)
    for k in (0, 2, 3):
        local.replica.reconfigure({"num_speculative_tokens": k})
        assert [policy.num_speculative_tokens(size) for size in (1, 8)] == [k, k]
        assert {delta.num_speculative_tokens for delta in run(local)} == {k}
        assert {delta.num_speculative_tokens for delta in run(local, num_speculative_tokens=1)} == {min(k, 1)}
    local.replica.reconfigure({"num_speculative_tokens": None})
    assert policy.num_speculative_tokens(1) == 3
    assert isinstance(policy, ExchangeableK)
    assert len(local.engines) == 1


@pytest.mark.parametrize(
    ("user_config", "sentence"),
    [
        ({"num_speculative_tokens": 4}, "got 4; allowed without a restart: 0, 1, 2, 3, which this model's engine was"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens: got -1"),
        (
            {"num_spec_tokens": 1},
            "num_spec_tokens: unknown key; allowed: log_level, log_format, num_speculative_tokens",
        ),
        ({"log_level": "LOUD"}, "log_level: got 'LOUD'; it should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens: got 0"),
        ("fast", "got 'fast'"),
    ],
)
class TestRefusals:
    """Wrong values, at both times."""

    def test_a_replica_that_starts_fails_with_the_reason(self, tmp_path: Path, user_config: Any, sentence: str) -> None:
        with pytest.raises(ConfigError) as caught:
            client(tmp_path).replica.reconfigure(user_config)
        assert sentence in str(caught.value)

    def test_one_that_serves_keeps_what_it_has_and_logs_the_reason(
        self, tmp_path: Path, user_config: Any, sentence: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        local = client(tmp_path)
        local.replica.reconfigure({"num_speculative_tokens": 2, "max_prompt_tokens": 4})
        serves(local)
        local.replica.reconfigure(user_config)
        assert sentence in caplog.text
        assert local.engine.k_policy.num_speculative_tokens(1) == 2
        with pytest.raises(RequestError, match="this server allows 4"):
            run(local, "hello")


def test_without_a_drafter_k_is_0(tmp_path: Path) -> None:
    local = client(tmp_path, k=0)
    local.replica.reconfigure({"num_speculative_tokens": 0})
    with pytest.raises(ConfigError, match="got 1; allowed without a restart: 0,"):
        local.replica.reconfigure({"num_speculative_tokens": 1})


def test_prompts_are_limited_in_tokens(tmp_path: Path) -> None:
    local = client(tmp_path)
    run(local, "hello")
    local.replica.reconfigure({"max_prompt_tokens": 4})
    run(local, "four")
    with pytest.raises(RequestError) as caught:
        run(local, "hello")
    assert caught.value.message == "the prompt has 5 tokens; this server allows 4 (max_prompt_tokens)"
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    local.replica.reconfigure({})
    run(local, "hello")


def test_the_log_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = client(tmp_path)
    for level, lines in (("WARNING", 0), ("INFO", 1), ("ERROR", 0), (None, 1)):
        local.replica.reconfigure({} if level is None else {"log_level": level})
        caplog.clear()
        run(local)
        assert caplog.text.count("output tokens") == lines


def test_the_ingress() -> None:
    settings = AppSettings.model_validate({"models": [{"id": "m", "model": "."}]})

    class Handle:
        def options(self, **_: Any) -> "Handle":
            return self

    ingress = Ingress(settings, {"m": Handle()}, Access())
    ingress.reconfigure({"max_choices": 2, "max_body_bytes": 2048})
    with pytest.raises(ConfigError, match=r"^max_choices: got 200"):
        ingress.reconfigure({"max_choices": 200})
    ingress.check_health()
    ingress.reconfigure({"max_choices": 200})
