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


def test_one_variable_puts_a_deployment_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[AppSettings] = []
    monkeypatch.setattr("serve_app.app.build_application", built.append)
    args = AppSettings.model_validate({"models": [{"id": "a", "model": "m", "device": "neuron", "dtype": "bfloat16"}]})
    build(args)
    monkeypatch.setenv("EYRIE_DEVICE", "cpu")
    build(args)
    assert [settings.models[0].device for settings in built] == ["neuron", "cpu"]
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
