"""The one API, of our own engine and of a fake of vLLM. `make test-vllm` runs the same of vLLM itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicas.config import EngineBase
from replicas.scheduling.k_policy import KPolicy
from replicas.vllm_engine.config import VllmConfig
from replicas.vllm_engine.engine import VllmEngine, build_vllm_engine
from serve_app.replica_deployment import ModelReplica
from serve_app.settings import AppSettings
from tests.replicas.vllm_engine.fake_vllm import FakeVllm, Step
from tests.serve_app.one_api import OneApi, Service


def script(token_ids: list[int], params: Any) -> list[Step]:
    """What it is asked for: a choice, or letters up to max_tokens or a stop string; a draft is accepted a step."""
    structure = getattr(params, "structured_outputs", None)
    text = structure["choice"][0] if structure else "abcdefghijkl"[: params.max_tokens]
    for stop in params.stop:
        text = text.partition(stop)[0]
    pieces = [text[0], *(text[index : index + 2] for index in range(1, len(text), 2))]
    return [(piece, list(piece.encode())) for piece in pieces]


def build_fake(config: EngineBase, k_policy: KPolicy) -> VllmEngine:
    assert isinstance(config, VllmConfig)
    return build_vllm_engine(
        config, k_policy, FakeVllm(script, ends=lambda params, text: len(text) < params.max_tokens)
    )


@pytest.fixture(scope="module", params=["eyrie", "vllm"])
def service(request: pytest.FixtureRequest, tiny_folder: Path, tiny_head: Path) -> Iterator[Service]:
    model: dict[str, Any] = {"id": "m", "model": str(tiny_folder), "dtype": "float32", "max_model_len": 64}
    model["speculative_config"] = {"method": "eagle3", "model": str(tiny_head), "num_speculative_tokens": 3}
    own = {"num_threads": 1, "block_size": 4}
    model |= own if request.param == "eyrie" else {"engine": "vllm", "device": "cpu"}
    [settings] = AppSettings.model_validate({"models": [model]}).models
    replica = ModelReplica(settings) if request.param == "eyrie" else ModelReplica(settings, build_fake)
    made = Service(settings, replica)
    yield made
    replica._engine.shutdown()


class TestOneApi(OneApi):
    """See OneApi."""
