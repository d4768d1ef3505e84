"""configs/settings.schema.json."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from serve_app.checkpoint_paths import PROJECT_ROOT
from serve_app.serve_config import load_settings
from serve_app.settings import ModelSettings
from serve_app.settings_schema import settings_schema

CONFIGS = PROJECT_ROOT / "configs"
SCHEMA_PATH = CONFIGS / "settings.schema.json"


@pytest.fixture
def config() -> dict[str, Any]:
    return yaml.safe_load((CONFIGS / "multi_model.yaml").read_text(encoding="utf-8"))


def test_the_committed_schema_is_current() -> None:
    committed = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    assert committed == settings_schema(), "python -m serve_app.settings_schema > configs/settings.schema.json"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_config_of_ours_fits_the_schema_and_the_settings(path: Any) -> None:
    text = path.read_text(encoding="utf-8")
    jsonschema.validate(yaml.safe_load(text), settings_schema())
    assert text.startswith("# yaml-language-server: $schema=settings.schema.json\n")
    load_settings(path)


def test_the_schema_refuses_what_the_settings_refuse(config: dict[str, Any]) -> None:
    application = config["applications"][0]
    validator = jsonschema.Draft202012Validator(settings_schema())
    validator.check_schema(settings_schema())
    assert validator.is_valid(config)
    for section, key, value in (
        (application["args"], "retry_after", 1),
        (application["args"]["models"][0], "max_num_seqs", 0),
        (application["args"]["models"][0]["speculative_config"], "num_spec_tokens", 2),
        (application["deployments"][0]["user_config"], "max_choices", 2),
        (application, "import_path", "serve_app:build"),
    ):
        before = dict(section)
        section[key] = value
        assert not validator.is_valid(config), key
        section.clear()
        section.update(before)
    application["deployments"].append({"name": "Ingress", "user_config": {"max_choices": 2}})
    assert validator.is_valid(config)


def test_the_schema_tells_what_a_key_means() -> None:
    model = settings_schema()["$defs"]["ModelSettings"]["properties"]
    assert model["max_num_seqs"]["description"] == "Sequences that run at once; more wait."


def test_two_models_with_settings_of_their_own(config: dict[str, Any]) -> None:
    first, second = load_settings(CONFIGS / "multi_model.yaml").models
    assert isinstance(first, ModelSettings)
    assert isinstance(second, ModelSettings)
    assert first.speculative_config is not None
    assert first.speculative_config.num_speculative_tokens == 2
    assert second.speculative_config is None
    assert (first.num_threads, second.num_threads) == (1, 1)
    assert first.resources.num_cpus + second.resources.num_cpus + 0.25 <= 2
