"""The engines that a YAML file describes: a deployment for Ray Serve, or one engine's keys alone.

Read here without Ray, so that a machine which only compiles or plans needs no serving stack. What belongs to the
deployment is left to `python -m serve_app.validate`; a key that belongs to neither is refused here too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from replicas.config import EngineConfig, SpeculativeConfig
from replicas.errors import ConfigError

DEPLOYMENT_KEYS = frozenset(
    {
        "id",
        "engine",
        "k_schedule",
        "live_k",
        "sampling_defaults",
        "autoscaling",
        "routing",
        "resources",
        "max_ongoing_requests",
        "max_queued_requests",
    }
)
"""Keys of a model in a deployment that its engine does not have (serve_app.settings.ModelSettings)."""


@dataclass(frozen=True, slots=True)
class NamedEngine:
    """An engine of the file, by its `id` there or by the file's name."""

    name: str
    config: EngineConfig


def read_engines(path: Path) -> list[NamedEngine]:
    """Every engine of ours in `path`, in order; models that vLLM serves are left to it.

    Raises ConfigError, one line a problem.
    """
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    engines: list[NamedEngine] = []
    problems: list[str] = []
    for place, keys in _models(data, path):
        name = str(keys.get("id", path.stem))
        if keys.get("engine") == "vllm":
            continue
        try:
            config = EngineConfig.model_validate({k: v for k, v in keys.items() if k not in DEPLOYMENT_KEYS})
            engines.append(NamedEngine(name, config))
        except ValidationError as error:
            problems += [place + _sentence(problem) for problem in error.errors()]
    if problems:
        raise ConfigError("\n".join(problems))
    if not engines:
        raise ConfigError(f"{path}: vLLM serves every model; allowed: at least one without engine: vllm")
    return engines


def _sentence(problem: ErrorDetails) -> str:
    where = ".".join(map(str, problem["loc"])) or "(the whole)"
    if problem["type"] == "extra_forbidden":
        owner = EngineConfig if len(problem["loc"]) == 1 else SpeculativeConfig
        return f"{where}: unknown key; allowed: {', '.join(owner.model_fields)}"
    if problem["type"] in ("missing", "value_error"):
        return f"{where}: {problem['msg']}"
    return f"{where}: got {problem['input']!r:.80}; {problem['msg'].replace('Input should', 'it should')}"


def _models(data: Any, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each engine's mapping, and where it stands."""
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no mapping; allowed: a Serve YAML, or the keys of one engine")
    if "applications" not in data:
        yield "", data
        return
    found = False
    for index, application in enumerate(_mappings(data["applications"])):
        for number, model in enumerate(_mappings((application.get("args") or {}).get("models"))):
            found = True
            yield f"applications[{index}].args.models[{number}].", model
    if not found:
        raise ConfigError(f"{path}: no application has args.models; allowed: at least one model")


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
