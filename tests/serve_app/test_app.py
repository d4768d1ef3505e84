"""The builder."""

import inspect
from pathlib import Path

import pytest
from ray.serve import Application
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as serve_calls

from replicas.errors import ConfigError
from serve_app.app import build


def test_serve_builds_the_application_from_the_yamls_args(tmp_path: Path) -> None:
    models = [{"id": name, "model": str(tmp_path)} for name in ("a", "b")]
    assert isinstance(serve_calls(build, {"models": models}), Application)
    assert len(inspect.signature(build).parameters) == 1


def test_serve_gets_our_sentences_for_wrong_args() -> None:
    with pytest.raises(ConfigError, match=r"^models\[0\].max_num_seq: unknown key; allowed: model, device"):
        serve_calls(build, {"models": [{"id": "a", "model": "b", "max_num_seq": 3}]})
