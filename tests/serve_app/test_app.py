"""The builder."""

import inspect
from pathlib import Path

import pytest
from ray.serve import Application
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as serve_calls

from replicas.errors import ConfigError
from serve_app.app import build
from serve_app.settings import AppSettings


def test_serve_builds_the_application_from_the_yamls_args(tmp_path: Path) -> None:
    models = [{"id": name, "model": str(tmp_path)} for name in ("a", "b")]
    assert isinstance(serve_calls(build, {"models": models}), Application)
    assert len(inspect.signature(build).parameters) == 1


def test_one_variable_puts_a_deployment_on_another_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built: list[AppSettings] = []
    monkeypatch.setattr("serve_app.app.build_application", built.append)
    model = {"id": "a", "model": "m", "device": "neuron", "dtype": "bfloat16", "tensor_parallel_size": 2}
    args = AppSettings.model_validate({"models": [model]})
    build(args)
    monkeypatch.setenv("EYRIE_DEVICE", "cpu")
    with caplog.at_level("INFO", "ray.serve"):
        build(args)
    models = [settings.models[0] for settings in built]
    assert [(model.device, model.tensor_parallel_size) for model in models] == [("neuron", 2), ("cpu", 2)]
    assert models[0].ray_actor_options["resources"] == models[1].ray_actor_options["resources"] == {"neuron_cores": 2}
    assert caplog.messages == ["EYRIE_DEVICE=cpu: model a runs on cpu instead of neuron, ranks: 2"]
    monkeypatch.setenv("EYRIE_DEVICE", "tpu")
    with pytest.raises(
        ConfigError, match=r"^models\[0\].device: got 'tpu'; it should be 'cpu', 'neuron' or 'xla-cpu'$"
    ):
        build(args)


def test_serve_gets_our_sentences_for_wrong_args() -> None:
    with pytest.raises(
        ConfigError, match=r"^models\[0\].max_num_seq: unknown key; allowed: model, tensor_parallel_size"
    ):
        serve_calls(build, {"models": [{"id": "a", "model": "b", "max_num_seq": 3}]})
