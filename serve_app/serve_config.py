"""Reads a Serve YAML as a whole. Serve itself ignores unknown keys, and keeps running when the args are wrong."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from replicas.errors import ConfigError
from serve_app.api_keys import DEFAULT_VARIABLE, access_of, is_loopback
from serve_app.k_policy import k_policy_of
from serve_app.live_settings import IngressLive, ModelLive, live_settings
from serve_app.settings import INGRESS_DEPLOYMENT, AppSettings, ModelSettings
from serve_app.untyped_data import list_or_none, mapping_or_none
from serve_app.validation_sentences import sentences, unknown_keys, value_text

IMPORT_PATH = "serve_app.app:build"
SERVES_DEFAULT_HOST = "0.0.0.0"


def load_settings(path: Path) -> AppSettings:
    """The settings of the application in the Serve YAML at `path`.

    Raises ConfigError, one line a problem: a key that Serve or Eyrie does not know, wherever it is, a wrong value.
    """
    data = _read(path)
    problems = list(unknown_keys(data, ServeDeploySchema))
    try:
        ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        problems += [line for line in sentences(error, ServeDeploySchema) if line not in problems]
    settings: list[AppSettings] = []
    for index, application in _applications(data):
        try:
            settings.append(AppSettings.model_validate(application.get("args") or {}))
        except ConfigError as error:
            problems += [f"applications[{index}].args.{line}" for line in str(error).splitlines()]
        else:
            problems += _mismatches(data, application, index, settings[-1])
    if problems:
        raise ConfigError("\n".join(problems))
    if len(settings) != 1:
        raise ConfigError(f"applications: {len(settings)} have the import_path {IMPORT_PATH!r}; allowed: exactly 1")
    return settings[0]


def load_own_model(path: Path, name: str | None = None) -> ModelSettings:
    """Of the Serve YAML at `path`, the model with id `name`, or the first, for tools that drive our own engine.

    Raises ConfigError for an id that there is not, and for a model that vLLM serves.
    """
    models = load_settings(path).models
    chosen = next((model for model in models if name in (None, model.id)), None)
    if chosen is None:
        raise ConfigError(f"--model: got {name!r}; {path} has {', '.join(model.id for model in models)}")
    if not isinstance(chosen, ModelSettings):
        raise ConfigError(f"--model: {chosen.id} has engine vllm; this command measures our own engine alone")
    return chosen


def _read(path: Path) -> dict[str, Any]:
    try:
        data = mapping_or_none(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if data is None:
        raise ConfigError(f"{path} holds no mapping; allowed: one with the key applications")
    return data


def _applications(data: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Those that Eyrie builds, with their index."""
    for index, item in enumerate(list_or_none(data.get("applications")) or []):
        application = mapping_or_none(item)
        if application is not None and application.get("import_path") == IMPORT_PATH:
            yield index, application


def _mismatches(data: dict[str, Any], application: dict[str, Any], index: int, settings: AppSettings) -> Iterator[str]:
    """Values that are right by themselves, but not together."""
    allowed = settings.deployment_names
    for number, item in enumerate(list_or_none(application.get("deployments")) or []):
        deployment = mapping_or_none(item) or {}
        name = deployment.get("name")
        if name is not None and name not in allowed:
            yield (
                f"applications[{index}].deployments[{number}].name: got {value_text(name)}; "
                f"allowed: {', '.join(allowed)}"
            )
        elif name is not None and (found := deployment.get("user_config")) is not None:
            where = f"applications[{index}].deployments[{number}].user_config"
            yield from (f"{where}.{line}" for line in _live_problems(name, found, settings))
    yield from _open_door(data, settings)
    proxy_timeout = (mapping_or_none(data.get("http_options")) or {}).get("request_timeout_s")
    own_timeout = settings.request_timeout_s
    if isinstance(proxy_timeout, int | float) and (own_timeout is None or own_timeout >= proxy_timeout):
        yield (
            f"applications[{index}].args.request_timeout_s: got {own_timeout}; it should be less than "
            f"http_options.request_timeout_s, {proxy_timeout}, which cuts streams silently"
        )


def _live_problems(deployment: str, user_config: Any, settings: AppSettings) -> list[str]:
    try:
        if deployment == INGRESS_DEPLOYMENT:
            live_settings(IngressLive, user_config)
        else:
            [model] = [model for model in settings.models if model.deployment_name == deployment]
            k_policy_of(model, live_settings(ModelLive, user_config))
    except ConfigError as error:
        return str(error).splitlines()
    return []


def _open_door(data: dict[str, Any], settings: AppSettings) -> Iterator[str]:
    """An address that other machines reach, without API keys."""
    try:
        access = access_of(settings)
    except ConfigError as error:
        yield str(error)
        return
    options = mapping_or_none(data.get("http_options")) or {}
    host = options.get("host", SERVES_DEFAULT_HOST)
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        host = SERVES_DEFAULT_HOST  # Whatever http_options say.
    if not access.digests and not access.is_open and isinstance(host, str) and not is_loopback(host):
        yield (
            f"http_options.host: {host} opens the server to other machines, without API keys; allowed: 127.0.0.1, "
            f"keys ({DEFAULT_VARIABLE}, or args.auth), or args.auth: none"
        )
