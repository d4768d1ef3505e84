"""vLLM itself with the demo and our EAGLE3 head: `make test-vllm`, in an environment of its own."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicas.errors import ConfigError, RequestError
from replicas.request import GenerationRequest, SamplingParams
from replicas.vllm_engine.config import VllmConfig
from replicas.vllm_engine.engine import build_vllm_engine
from replicas.vllm_engine.library import InstalledVllm
from serve_app.checkpoint_paths import PROJECT_ROOT, with_local_checkpoints
from serve_app.k_policy import FixedK
from serve_app.replica_deployment import ModelReplica
from serve_app.serve_config import load_settings
from tests.replicas.vllm_engine.fake_vllm import NAMES, FakeAsyncLLM
from tests.serve_app.one_api import OneApi, Service

CONFIG = PROJECT_ROOT / "configs" / "vllm.yaml"


@pytest.fixture(scope="session")
def library() -> InstalledVllm:
    return InstalledVllm()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    settings = load_settings(CONFIG).models[0].model_copy(update={"max_model_len": 512, "max_num_seqs": 4})
    made = Service(settings, ModelReplica(settings))
    yield made
    made.replica._engine.shutdown()


@pytest.mark.timeout(900)
class TestOneApi(OneApi):
    """See OneApi."""


def test_the_fake_is_called_as_vllm_is(library: InstalledVllm) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

    assert library.argument_names >= NAMES
    theirs, ours = (list(inspect.signature(kind.generate).parameters) for kind in (AsyncLLM, FakeAsyncLLM))
    assert theirs[:4] == ours[:4]
    for name in ("shutdown", "errored"):
        assert hasattr(AsyncLLM, name)


def test_an_unknown_argument_is_refused_by_name_before_the_start(library: InstalledVllm) -> None:
    [model] = load_settings(CONFIG).models
    data = model.engine_config.model_dump() | {"engine_args": {"enforce_eagr": True}}
    with pytest.raises(ConfigError, match="engine_args holds enforce_eagr; allowed"):
        build_vllm_engine(with_local_checkpoints(VllmConfig.model_validate(data)), FixedK(3), library)


def test_what_vllm_refuses_is_a_request_error(service: Service) -> None:
    async def ask() -> None:
        sampling = SamplingParams(temperature=0.5, min_p=2.0, max_tokens=2)
        request = GenerationRequest("r", (1, 2), sampling)
        async for _ in service.replica._engine.generate(request):
            pass

    with pytest.raises(RequestError, match="min_p"):
        asyncio.run(ask())


@pytest.mark.timeout(900)
def test_k_in_force_follows_the_schedule(tmp_path: Path) -> None:
    """Two sequences draft once a step, one alone twice."""
    schedule = tmp_path / "k.yaml"
    schedule.write_text(
        "model: m\nengine: vllm\ndevice: cpu\nmethod: eagle3\nbuckets:\n  - {from_batch: 1, k: 2}\n"
        "  - {from_batch: 2, k: 1}\nbest_fixed_k: 1\nacceptance_by_position: [0.5]\nstep_ms: {1: {0: 1.0}}\n"
    )
    [model] = load_settings(CONFIG).models
    settings = model.model_copy(update={"k_schedule": str(schedule), "max_model_len": 512, "max_num_seqs": 2})
    replica = ModelReplica(settings)

    async def answers(count: int) -> list[Any]:
        async def one(index: int) -> Any:
            sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
            found = [
                output
                async for output in replica._engine.generate(
                    GenerationRequest(f"{count}-{index}", tuple(range(5, 45)), sampling)
                )
            ]
            return found[-1].acceptance

        return list(await asyncio.gather(*(one(index) for index in range(count))))

    try:
        [alone] = asyncio.run(answers(1))
        assert len(alone.accepted_by_position) == 2
        # The steps before a neighbour came, and after it went, may have two.
        for beside in asyncio.run(answers(2)):
            assert beside.drafted < 1.5 * beside.steps
    finally:
        replica._engine.shutdown()
