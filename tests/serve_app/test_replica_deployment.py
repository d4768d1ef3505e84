"""Jobs to token ids, outputs to deltas."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from replicas.errors import EngineDeadError, RequestError
from replicas.request import SamplingParams
from serve_app.exchangeable_k import ExchangeableK
from serve_app.generation import ChatMessage, Delta, GenerationJob, Prompt, ScoredToken
from serve_app.settings import ModelSettings
from tests.serve_app.fake_engine import LocalClient


def client(tmp_path: Path, pieces: list[Any] | None = None, drafter: bool = True) -> LocalClient:
    settings: dict[str, Any] = {"id": "m", "model": str(tmp_path), "max_model_len": 32}
    if drafter:
        settings["speculative_config"] = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3}
    return LocalClient(ModelSettings.model_validate(settings), pieces or ["a", "b"])


def run(client: LocalClient, prompt: Prompt, **sampling: Any) -> list[Delta]:
    async def collect() -> list[Delta]:
        job = GenerationJob("r", prompt, SamplingParams(**sampling))
        return [delta async for delta in client.replica.generate(job)]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("hi", b"hi"),
        ((104, 105), b"hi"),
        ((ChatMessage("system", "s"), ChatMessage("user", "hi")), b"<system>s<user>hi"),
    ],
)
def test_every_kind_of_prompt_is_tokenised(tmp_path: Path, prompt: Prompt, token_ids: bytes) -> None:
    local = client(tmp_path)
    run(local, prompt, seed=3)
    [request] = local.engine.requests
    assert bytes(request.prompt_token_ids) == token_ids
    assert request.sampling == SamplingParams(seed=3)


def test_a_delta_a_step(tmp_path: Path) -> None:
    assert run(client(tmp_path), "hi") == [
        Delta(
            "a", 2, 2, 3, 1, drafted=3, accepted=1, mean_acceptance_length=2.0, finish_reason=None, num_cached_tokens=1
        ),
        Delta(
            "b",
            2,
            4,
            3,
            2,
            drafted=6,
            accepted=2,
            mean_acceptance_length=2.0,
            finish_reason="stop",
            num_cached_tokens=1,
        ),
    ]


@pytest.mark.parametrize(
    ("drafter", "cap", "k"), [(True, None, 3), (True, 2, 2), (True, 9, 3), (True, 0, 0), (False, 2, 0)]
)
def test_k_is_the_models_under_the_requests_cap(tmp_path: Path, drafter: bool, cap: int | None, k: int) -> None:
    deltas = run(client(tmp_path, drafter=drafter), "hi", num_speculative_tokens=cap)
    assert {delta.num_speculative_tokens for delta in deltas} == {k}


def test_the_engine_gets_the_models_k_and_resolved_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafters" / "a").mkdir(parents=True)
    config = {"method": "eagle3", "model": "drafters/a", "num_speculative_tokens": 5}
    settings = ModelSettings.model_validate({"id": "m", "model": "pypi:x", "speculative_config": config})
    engine = LocalClient(settings, ["a"]).engine
    assert isinstance(engine.k_policy, ExchangeableK)
    assert [engine.k_policy.num_speculative_tokens(size) for size in (1, 8)] == [5, 5]
    assert engine.config.model == "pypi:x"
    assert engine.config.speculative_config is not None
    assert engine.config.speculative_config.model == str(tmp_path / "drafters" / "a")


@pytest.mark.parametrize(
    ("prompt", "param"),
    [("x" * 40, "prompt"), ((7,) * 40, "prompt"), ((ChatMessage("user", "x" * 40),), "messages")],
)
def test_a_refusal_names_the_field_that_the_prompt_came_in(tmp_path: Path, prompt: Prompt, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        run(client(tmp_path), prompt)
    assert (caught.value.param, caught.value.code) == (param, "context_length_exceeded")


@pytest.mark.parametrize("prompt", ["hi", (ChatMessage("user", "hi"),)])
def test_a_refusal_of_another_field_keeps_its_name(tmp_path: Path, prompt: Prompt) -> None:
    with pytest.raises(RequestError, match="token 999") as caught:
        run(client(tmp_path, [RequestError("logit_bias holds token 999", "logit_bias")]), prompt)
    assert caught.value.param == "logit_bias"


def test_deltas_carry_scores_if_asked(tmp_path: Path) -> None:
    assert [delta.scores for delta in run(client(tmp_path), "hi")] == [None, None]
    first, second = (delta.scores for delta in run(client(tmp_path), "hi", logprobs=1))
    top = ((b"A", -0.25),)
    assert first == (ScoredToken(b"\x01", -1.5, top, 0), ScoredToken(b"\x02", -2.5, top, 1))
    assert second == (ScoredToken(b"\x01", -1.5, top, 2), ScoredToken(b"\x02", -2.5, top, 3))


@pytest.mark.parametrize("token_id", [-1, 256])
def test_token_ids_beyond_the_vocabulary_never_reach_the_engine(tmp_path: Path, token_id: int) -> None:
    local = client(tmp_path)
    with pytest.raises(RequestError, match=f"token id {token_id}; allowed: 0 to 255"):
        run(local, (1, token_id))
    assert local.engine.requests == []


def test_closing_aborts(tmp_path: Path) -> None:
    local = client(tmp_path, ["a", None])

    async def leave() -> None:
        stream = local.replica.generate(GenerationJob("r", "hi", SamplingParams()))
        await stream.__anext__()
        assert local.engine.running == 1
        await stream.aclose()
        assert local.engine.running == 0

    asyncio.run(leave())


def test_health_and_stats_are_the_engines(tmp_path: Path) -> None:
    local = client(tmp_path)
    asyncio.run(local.replica.check_health())
    assert asyncio.run(local.replica.stats()) == {"running": 0, "free_blocks": 100}
    local.engine.dead = True
    for probe in (local.replica.check_health, local.replica.stats):
        with pytest.raises(EngineDeadError):
            asyncio.run(probe())


def test_the_end_of_a_replica_shuts_its_engine_down(tmp_path: Path) -> None:
    local = client(tmp_path)
    engine = local.engine
    del local.replica
    assert engine.was_shut_down


def test_the_autoscaler_and_the_router_get_numbers(tmp_path: Path) -> None:
    replica = client(tmp_path).replica
    figures = replica.record_autoscaling_stats()
    assert (figures["running"], figures["kv_use"]) == (0, 0.0)
    assert figures["uptime_s"] >= 0
    assert {type(value) for value in figures.values()} == {float}
