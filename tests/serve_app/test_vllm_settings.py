"""`engine: vllm` in a model's settings."""

from pathlib import Path
from typing import Any

import pytest

from replicas.errors import ConfigError
from replicas.scheduling.k_policy import DraftFeedback
from replicas.vllm_engine.config import VllmConfig
from serve_app.k_policy import k_policy_of
from serve_app.live_settings import ModelLive
from serve_app.settings import AppSettings, ModelSettings, VllmModelSettings
from tests.serve_app.k_schedules import write_schedule

SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 3}


def app(**fields: Any) -> AppSettings:
    return AppSettings.model_validate({"models": [{"id": "m", "model": "x/y", **fields}]})


def vllm(**fields: Any) -> VllmModelSettings:
    [model] = app(engine="vllm", **fields).models
    assert isinstance(model, VllmModelSettings)
    return model


def test_our_own_engine_is_the_default() -> None:
    for fields in ({}, {"engine": "eyrie"}):
        assert isinstance(app(**fields).models[0], ModelSettings)


def test_the_engines_part() -> None:
    model = vllm(dtype="float32", engine_args={"enforce_eager": True}, k_schedule=None, resources={"num_cpus": 2})
    assert model.engine_config == VllmConfig.model_validate(
        {"model": "x/y", "dtype": "float32", "engine_args": {"enforce_eager": True}}
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"engine": "vllm", "num_threads": 2}, "models[0].num_threads: unknown key; allowed: "),
        (
            {"engine": "vllm", "max_num_seqs": 0},
            "models[0].max_num_seqs: got 0; it should be greater than or equal to 1",
        ),
        ({"engine": "eyrie", "engine_args": {}}, "models[0].engine_args: unknown key; allowed: "),
        ({"engine_args": {}}, "models[0].engine_args: unknown key; allowed: "),
        ({"engine": "tgi"}, "models[0]: got {'id': 'm', 'model': 'x/y', 'engine': 'tgi'}; engine: allowed: eyrie"),
        ({"engine": "vllm", "device": "xla-cpu"}, "models[0].device: got 'xla-cpu'; it should be 'cuda', 'neuron' or"),
        (
            {"engine": "vllm", "speculative_config": SPECULATIVE, "k_schedule": "a", "live_k": True},
            "models[0]: live_k is true; allowed with engine vllm: false",
        ),
        (
            {"engine": "vllm", "speculative_config": {"method": "ngram", "k": 1}},
            "models[0].speculative_config.k: unknown key; allowed: method, model, num_speculative_tokens",
        ),
        (
            {"engine": "vllm", "engine_args": {"model": "z"}},
            "models[0]: engine_args holds model, which is a key of the model itself; allowed: other arguments",
        ),
        (
            {"engine": "vllm", "tensor_parallel_size": 2, "resources": {"num_gpus": 1}},
            "models[0]: resources.num_gpus is 1.0; with tensor_parallel_size 2 each rank has one: leave it out",
        ),
    ],
)
def test_a_wrong_key_is_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        app(**fields)
    [line] = str(caught.value).splitlines()
    assert line.startswith(sentence)


def test_a_gpu_a_replica() -> None:
    assert vllm().ray_actor_options["num_gpus"] == 1
    assert vllm().placement_options == {}
    assert vllm(resources={"num_gpus": 0.5}).ray_actor_options["num_gpus"] == 0.5


def test_ranks_on_gpus_have_a_bundle_each_in_one_group() -> None:
    model = vllm(tensor_parallel_size=3, resources={"num_cpus": 2, "memory": 5, "custom": {"fast": 1}})
    assert "num_gpus" not in model.ray_actor_options
    first = {"CPU": 2, "GPU": 1, "fast": 1, "memory": 5}
    assert model.placement_options == {
        "placement_group_bundles": [first, {"GPU": 1}, {"GPU": 1}],
        "placement_group_strategy": "PACK",
    }


@pytest.mark.parametrize(("device", "resources"), [("cpu", {}), ("neuron", {"neuron_cores": 2})])
def test_elsewhere_the_ranks_are_processes_of_the_replica(device: str, resources: dict[str, int]) -> None:
    model = vllm(device=device, tensor_parallel_size=2)
    assert model.ray_actor_options["resources"] == resources
    assert "num_gpus" not in model.ray_actor_options
    assert model.placement_options == {}


def test_on_another_device() -> None:
    [model] = app(engine="vllm", tensor_parallel_size=2).on_device("cpu").models
    assert (model.engine, model.device, model.tensor_parallel_size) == ("vllm", "cpu", 1)


def test_a_schedule_is_followed_at_once_as_vllm_does(tmp_path: Path) -> None:
    path = write_schedule(tmp_path / "k.yaml", engine="vllm", method="ngram")
    policy = k_policy_of(vllm(device="cpu", speculative_config=SPECULATIVE, k_schedule=str(path)))
    found: list[int] = []
    for batch in (1, 4, 8, 1):
        policy.observe(DraftFeedback(batch, (), ()))
        found.append(policy.num_speculative_tokens(batch))
    assert found == [3, 1, 0, 3]


def test_k_cannot_change_while_it_serves() -> None:
    model = vllm(speculative_config=SPECULATIVE)
    assert k_policy_of(model, ModelLive(max_prompt_tokens=5)).num_speculative_tokens(1) == 3
    with pytest.raises(ConfigError, match="num_speculative_tokens: got 2; vLLM fixes K when it starts"):
        k_policy_of(model, ModelLive(num_speculative_tokens=2))
