"""The args of the YAML."""

from typing import Any

import pytest

from replicas.config import EngineConfig
from replicas.errors import ConfigError
from serve_app.settings import AppSettings

SPECULATIVE = {"method": "eagle3", "model": "drafter", "num_speculative_tokens": 3}


def args(**changes: Any) -> dict[str, Any]:
    model = {"id": "small", "model": "target", "speculative_config": SPECULATIVE}
    return {"models": [model | changes]}


def refused(data: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        AppSettings.model_validate(data)
    return str(caught.value).splitlines()


def test_a_model_is_its_engine_and_its_deployment() -> None:
    [model] = AppSettings.model_validate(args(max_num_seqs=4, id="org/small")).models
    assert model.engine_config == EngineConfig.model_validate(
        {"model": "target", "max_num_seqs": 4, "speculative_config": SPECULATIVE}
    )
    assert model.deployment_name == "org--small"
    assert model.num_ongoing_requests == 8
    assert model.resources.ray_actor_options() == {"num_cpus": 1, "resources": {}}
    assert model.autoscaling.max_replicas == 1


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            args(speculative_config=SPECULATIVE | {"num_spec_tokens": 3}),
            "models[0].speculative_config.num_spec_tokens: unknown key; allowed: method, model, "
            "num_speculative_tokens, allowed_num_speculative_tokens, prompt_lookup_min, prompt_lookup_max",
        ),
        (args(max_num_seqs=0), "models[0].max_num_seqs: got 0; it should be greater than or equal to 1"),
        (args(dtype="int4"), "models[0].dtype: got 'int4'; it should be 'float16', 'bfloat16' or 'float32'"),
        (
            args(autoscaling={"min_replicas": 2}),
            "models[0].autoscaling: min_replicas is 2; allowed: at most max_replicas, 1",
        ),
        (
            args(autoscaling={"initial_replicas": 3, "max_replicas": 2}),
            "models[0].autoscaling: initial_replicas is 3; allowed: min_replicas to max_replicas, 1 to 2",
        ),
        (
            args(autoscaling={"policy": "tpot"}),
            "models[0].autoscaling.target_tpot_ms: required, but absent",
        ),
        (
            args(autoscaling={"policy": "cpu"}),
            "models[0].autoscaling: got {'policy': 'cpu'}; policy should be 'ongoing_requests' or 'tpot'",
        ),
        (
            args(autoscaling={"policy": "tpot", "target_tpot_ms": 50, "target_ongoing_requests": 2}),
            "models[0].autoscaling.target_ongoing_requests: unknown key; allowed: min_replicas, initial_replicas, "
            "max_replicas, look_back_period_s, downscale_delay_s, downscale_to_zero_delay_s, policy, target_tpot_ms, "
            "upscale_delay_s, upscale_at, downscale_at, max_kv_use, max_waiting_prompt_tokens, start_up_s, "
            "ignore_first_s",
        ),
        (
            args(autoscaling={"policy": "tpot", "target_tpot_ms": 50, "downscale_at": 0.9}),
            "models[0].autoscaling: downscale_at is 0.9; allowed: less than upscale_at, 0.9, or the number of "
            "replicas would swing",
        ),
        (
            args(resources={"cpus": 1}),
            "models[0].resources.cpus: unknown key; allowed: num_cpus, memory, neuron_cores, num_gpus, custom",
        ),
        (
            args(k_schedule="s.yaml", speculative_config=None),
            "models[0]: k_schedule is 's.yaml', but there is no speculative_config to draft with",
        ),
        (
            args(live_k=True),
            "models[0]: live_k is true, but there is no k_schedule, whose measured costs it weighs K by",
        ),
        ({"models": [{"id": "small"}]}, "models[0].model: required, but absent"),
        (
            {"models": [*args()["models"], *args()["models"]]},
            "models[1].id: 'small' is taken by models[0]; allowed: distinct ids",
        ),
        (
            {"models": args(id="Ingress")["models"]},
            "models[0].id: 'Ingress' is taken by the ingress; allowed: distinct ids",
        ),
    ],
)
def test_a_problem_is_one_sentence_with_its_path(data: Any, line: str) -> None:
    assert refused(data) == [line]


def test_all_problems_are_told_at_once() -> None:
    lines = refused(args(max_num_seqs=0, kv_dtype="fp8") | {"modles": []})
    assert [line.split(":")[0] for line in lines] == ["models[0].max_num_seqs", "models[0].kv_dtype", "modles"]


@pytest.mark.parametrize("data", [None, [], "models", {"models": []}, {"models": "x"}])
def test_what_is_no_settings_at_all_is_a_config_error_too(data: Any) -> None:
    assert len(refused(data)) == 1


def test_a_replica_starts_with_its_device_s_variables() -> None:
    [settings] = AppSettings.model_validate(args(resources={"num_cpus": 2, "custom": {"big": 1}})).models
    assert settings.ray_actor_options == {
        "num_cpus": 2,
        "resources": {"big": 1},
        "runtime_env": {"env_vars": {"GOMP_SPINCOUNT": "40000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}},
    }


def neuron(**changes: Any) -> dict[str, Any]:
    return args(device="neuron", dtype="bfloat16", tensor_parallel_size=2, resources={"num_cpus": 2}, **changes)


def test_each_rank_on_neuron_reserves_a_core() -> None:
    [settings] = AppSettings.model_validate(neuron()).models
    assert settings.ray_actor_options == {
        "num_cpus": 2,
        "resources": {"neuron_cores": 2},
        "runtime_env": {"env_vars": {}},
    }


def test_on_the_cpu_no_core_is_reserved_unless_asked_for() -> None:
    [settings] = AppSettings.model_validate(args(resources={"neuron_cores": 2, "custom": {"big": 1}})).models
    assert settings.ray_actor_options["resources"] == {"big": 1, "neuron_cores": 2}


def test_another_device_keeps_what_is_reserved_and_all_else() -> None:
    settings = AppSettings.model_validate(neuron(max_num_seqs=3))
    [model] = settings.on_device("cpu").models
    assert (model.device, model.tensor_parallel_size, model.max_num_seqs) == ("cpu", 2, 3)
    assert model.ray_actor_options["resources"] == {"neuron_cores": 2}
    assert model.speculative_config == settings.models[0].speculative_config
    assert settings.on_device("neuron").models[0].ray_actor_options == settings.models[0].ray_actor_options
    with pytest.raises(ConfigError, match=r"models\[0\]\.device: got 'tpu'"):
        settings.on_device("tpu")


@pytest.mark.parametrize(
    ("resources", "line"),
    [
        (
            {"neuron_cores": 1},
            "models[0]: resources.neuron_cores is 1; on device neuron it should be tensor_parallel_size, 2, "
            "or be left out",
        ),
        (
            {"custom": {"neuron_cores": 2}},
            "models[0].resources: custom holds neuron_cores; allowed: resources.neuron_cores, its own key",
        ),
    ],
)
def test_cores_that_do_not_fit_the_ranks_are_refused(resources: dict[str, Any], line: str) -> None:
    data = neuron()
    data["models"][0]["resources"] = resources
    assert refused(data) == [line]
