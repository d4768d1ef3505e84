"""What a sweep measures: the YAML files in configs/sweeps."""

import hashlib
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from benchmarks.workloads import OWN_PROMPTS
from replicas.config import MAX_SPECULATIVE_TOKENS, EngineConfig
from replicas.errors import ConfigError
from replicas.vllm_engine.config import VllmConfig
from serve_app.checkpoint_paths import find_file, with_local_checkpoints
from serve_app.serve_config import load_settings
from serve_app.validation_sentences import sentences

AnyEngineConfig = EngineConfig | VllmConfig
K = Annotated[int, Field(ge=0, le=MAX_SPECULATIVE_TOKENS)]
Batch = Annotated[int, Field(ge=1, le=256)]
Tokens = Annotated[int, Field(ge=1)]


class SweepConfig(BaseModel):
    """Cells to measure (every K x every batch x every context length), and how."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deployment: Path
    """A Serve YAML: its model is measured with its engine's settings."""
    model: str | None = None
    """The `id` of the model in it; None: its first."""
    k: Annotated[list[K], Field(min_length=1)]
    """Draft tokens a step. 0 is what the others are compared with."""
    batch: Annotated[list[Batch], Field(min_length=1)]
    """Sequences at a time."""
    context_tokens: Annotated[list[Tokens | None], Field(min_length=1)] = [None]
    """Prompts are lengthened to this many tokens; null leaves them as they are."""
    prompts: Path | None = None
    """JSON lines with `turns`; null: the project's own."""
    max_tokens: Annotated[int, Field(ge=2)] = 64
    """An answer ends by itself, or here."""
    min_prompts: Annotated[int, Field(ge=1)] = 8
    """Answers a run; at least two for each sequence of the batch, so that the batch is full for a while."""
    repeats: Annotated[int, Field(ge=1)] = 3
    """Runs a cell, each with other prompts. All cells run once before any runs again."""
    seed: int = 0
    """Of the order of cells and prompts."""

    @field_validator("k", "batch", "context_tokens")
    @classmethod
    def _no_cell_twice(cls, values: list[int | None]) -> list[int | None]:
        if len(set(values)) < len(values):
            raise ValueError(f"{values} holds a value twice; allowed: distinct values")
        return values

    @field_validator("k")
    @classmethod
    def _has_plain_decoding(cls, values: list[int]) -> list[int]:
        if 0 not in values:
            raise ValueError(f"{values} has no 0, with which the others are compared; allowed: a list with 0")
        return values

    def prompts_in_a_run(self, batch: int) -> int:
        """Answers of a run at `batch`."""
        return max(self.min_prompts, 2 * batch)


def load_sweep_config(path: Path, prompts: Path | None = None) -> SweepConfig:
    """The sweep at `path`, over `prompts` if given instead of its own.

    Its paths become absolute: from the working directory, then from the project's root.
    Raises ConfigError, one line a problem.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    try:
        config = SweepConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in sentences(error, SweepConfig))) from None
    named = prompts or config.prompts
    prompts = OWN_PROMPTS if named is None else find_file("prompts", named)
    return config.model_copy(update={"deployment": find_file("deployment", config.deployment), "prompts": prompts})


def measured_model(config: SweepConfig) -> tuple[str, AnyEngineConfig]:
    """The id and the engine of the model that `config` measures. Raises ConfigError."""
    models = load_settings(config.deployment).models
    for model in models:
        if config.model in (None, model.id):
            _fits(config, model.max_model_len)
            return model.id, with_local_checkpoints(model.engine_config)
    ids = ", ".join(model.id for model in models)
    raise ConfigError(f"model: {config.deployment} has no model {config.model!r}; allowed: {ids}")


def file_stem(model: str, engine: AnyEngineConfig) -> str:
    """How files about a model on a device are named."""
    suffix = "-vllm" if isinstance(engine, VllmConfig) else ""
    return f"{model.replace('/', '--').replace(':', '--')}-{engine.device}{suffix}"


def _fits(config: SweepConfig, max_model_len: int) -> None:
    longest = max(context or 0 for context in config.context_tokens)
    if longest + config.max_tokens > max_model_len:
        raise ConfigError(
            f"context_tokens: {longest} and max_tokens {config.max_tokens} together exceed the model's max_model_len, "
            f"{max_model_len}"
        )


def config_hash(config: SweepConfig, engine: AnyEngineConfig) -> str:
    """16 hex digits that change with what is measured: cells, engine, the text of the prompts; folders do not count."""
    speculative = engine.speculative_config
    if speculative is not None and speculative.model is not None:
        speculative = speculative.model_copy(update={"model": Path(speculative.model).name})
    engine = engine.model_copy(update={"model": Path(engine.model).name, "speculative_config": speculative})
    prompts = (config.prompts or OWN_PROMPTS).read_bytes()
    keys = config.model_dump_json(exclude={"deployment", "prompts"})
    return hashlib.sha256(b"\n".join([keys.encode(), engine.model_dump_json().encode(), prompts])).hexdigest()[:16]
