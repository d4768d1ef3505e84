"""From settings to vLLM's arguments."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from replicas.errors import ConfigError
from replicas.vllm_engine.config import VllmConfig
from replicas.vllm_engine.engine_args import engine_arguments, k_ranges
from replicas.vllm_engine.library import check_version
from serve_app.k_policy import FixedK, ScheduledK
from serve_app.k_schedule import KBucket, KSchedule
from tests.replicas.vllm_engine.fake_vllm import NAMES

EAGLE3 = {"method": "eagle3", "num_speculative_tokens": 3}


def schedule(*buckets: tuple[int, int]) -> ScheduledK:
    return ScheduledK(
        KSchedule(
            model="m",
            engine="vllm",
            device="cpu",
            method="eagle3",
            buckets=[KBucket(from_batch=start, k=k) for start, k in buckets],
            best_fixed_k=1,
            acceptance_by_position=[0.5],
            step_ms={1: {0: 1.0}},
        )
    )


def config(**fields: Any) -> VllmConfig:
    return VllmConfig.model_validate({"model": "m", "device": "cpu"} | fields)


def arguments(made: VllmConfig, policy: Any = None) -> dict[str, Any]:
    return engine_arguments(made, Path("/models/m"), policy or FixedK(3), NAMES)


def test_our_keys_and_theirs(tiny_head: Path) -> None:
    made = config(
        dtype="float32",
        max_num_seqs=4,
        speculative_config=EAGLE3 | {"model": str(tiny_head)},
        speculative_args={"draft_tensor_parallel_size": 1},
        engine_args={"enforce_eager": True},
    )
    assert arguments(made) == {
        "model": "/models/m",
        "dtype": "float32",
        "tensor_parallel_size": 1,
        "max_model_len": 2048,
        "max_num_seqs": 4,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "enforce_eager": True,
        "per_request_spec_decode_metrics": "detailed",
        "speculative_config": {
            "method": "eagle3",
            "model": str(tiny_head),
            "num_speculative_tokens": 3,
            "draft_tensor_parallel_size": 1,
        },
    }


def test_a_schedule_becomes_vllms_ranges(tiny_head: Path) -> None:
    made = config(max_num_seqs=8, speculative_config=EAGLE3 | {"model": str(tiny_head)})
    found = arguments(made, schedule((1, 3), (3, 1), (6, 0)))["speculative_config"]
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 2, 3], [3, 5, 1], [6, 8, 0]]
    assert found["num_speculative_tokens"] == 3


def test_one_k_below_the_largest_is_a_range_too() -> None:
    assert k_ranges(FixedK(1), 8, (0, 1, 2)) == [[1, 8, 1]]
    made = config(speculative_config={"method": "ngram", "num_speculative_tokens": 2})
    found = arguments(made, FixedK(1))["speculative_config"]
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 8, 1]]
    assert (found["prompt_lookup_min"], found["prompt_lookup_max"]) == (2, 4)


def test_a_k_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="wants 9 draft tokens"):
        k_ranges(FixedK(9), 2, (0, 1, 2))


def test_unknown_arguments_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="engine_args holds enforce_eagr, speed; allowed: arguments that"):
        arguments(config(engine_args={"speed": 1, "enforce_eagr": True, "enforce_eager": True}))


@pytest.mark.parametrize(
    "name", ["model", "max_num_seqs", "dtype", "speculative_config", "distributed_executor_backend"]
)
def test_arguments_with_a_key_of_their_own_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=f"engine_args holds {name}, which is "):
        config(engine_args={name: 1})


@pytest.mark.parametrize("name", ["method", "num_speculative_tokens_per_batch_size"])
def test_so_are_those_of_speculation(name: str) -> None:
    with pytest.raises(ValidationError, match=f"speculative_args holds {name}; allowed"):
        config(speculative_config={"method": "ngram"}, speculative_args={name: 1})
    with pytest.raises(ValidationError, match="there is no speculative_config"):
        config(speculative_args={"x": 1})


def test_ranks_on_gpus_are_actors_of_the_replicas_group_and_others_its_processes() -> None:
    assert arguments(config(device="cuda", tensor_parallel_size=2))["distributed_executor_backend"] == "ray"
    for device, ranks in (("cuda", 1), ("neuron", 2), ("cpu", 2)):
        made = config(device=device, tensor_parallel_size=ranks)
        assert "distributed_executor_backend" not in arguments(made)


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0", "0.32.0+cpu", "0.29.0.1.2.0", "0.32.1rc1"])
def test_supported_versions(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.28.3", "0.33.0", "1.0"])
def test_others_are_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=rf"vllm {version} is installed; allowed: >=0.29,<0.33"):
        check_version(version)
