"""Engines of a YAML file, read without Ray."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from replicas.config import EngineConfig
from replicas.config_file import DEPLOYMENT_KEYS, read_engines
from replicas.errors import ConfigError
from serve_app.settings import ModelSettings
from tests.integration.serve_process import CONFIG


def problems(path: Path, data: Any) -> list[str]:
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError) as caught:
        read_engines(path)
    return str(caught.value).splitlines()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def test_the_engines_of_a_deployment_are_those_that_it_serves() -> None:
    [engine] = read_engines(CONFIG)
    served = yaml.safe_load(CONFIG.read_text())["applications"][0]["args"]["models"][0]
    assert engine.name == "smollm2-135m"
    assert engine.config == ModelSettings.model_validate(served).engine_config


def test_the_keys_that_are_left_out_are_the_deployment_s() -> None:
    assert ModelSettings.model_fields.keys() - EngineConfig.model_fields.keys() == DEPLOYMENT_KEYS


def test_one_engine_s_keys_alone_are_a_file_too(path: Path) -> None:
    path.write_text("model: org/model\nmax_num_seqs: 2\n")
    [engine] = read_engines(path)
    assert (engine.name, engine.config.max_num_seqs) == ("config", 2)


def test_every_model_of_every_application_is_read(path: Path) -> None:
    models = [{"id": name, "model": "m"} for name in ("a", "b")]
    path.write_text(yaml.safe_dump({"applications": [{"args": {"models": models}}, {"args": {"models": models[:1]}}]}))
    assert [engine.name for engine in read_engines(path)] == ["a", "b", "a"]


def test_problems_are_told_with_their_place(path: Path) -> None:
    head = {"method": "eagle3", "model": "h", "num_spec_tokens": 3}
    models = [{"id": "a", "model": "m", "max_num_seq": 3, "speculative_config": head}, {"id": "b", "max_num_seqs": 0}]
    nested, unknown, *others = problems(path, {"applications": [{"args": {"models": models}}]})
    place = "applications[0].args.models[0]."
    assert unknown.startswith(f"{place}max_num_seq: unknown key; allowed: model, tensor_parallel_size,")
    assert nested.startswith(f"{place}speculative_config.num_spec_tokens: unknown key; allowed: method, model,")
    assert others == [
        "applications[0].args.models[1].model: Field required",
        "applications[0].args.models[1].max_num_seqs: got 0; it should be greater than or equal to 1",
    ]


@pytest.mark.parametrize("data", [[], "text", None, {"applications": []}, {"applications": [{"args": {}}]}])
def test_a_file_without_engines_is_refused(path: Path, data: Any) -> None:
    assert len(problems(path, data)) == 1


def test_a_file_that_cannot_be_read_is_named(path: Path, tmp_path: Path) -> None:
    path.write_text("a: [")
    for file in (path, tmp_path / "absent.yaml"):
        with pytest.raises(ConfigError, match=str(file)):
            read_engines(file)
