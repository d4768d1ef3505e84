"""What may change while requests run: the `user_config` of each deployment, which Serve hands to `reconfigure`."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replicas.errors import ConfigError
from serve_app.logs import LogLevel
from serve_app.openai_protocol import MAX_CHOICES
from serve_app.validation_sentences import sentences

MIB = 1024 * 1024


class _Live(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    log_level: LogLevel = "INFO"


class IngressLive(_Live):
    """Of the ingress."""

    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 * MIB
    """Larger bodies get 413."""
    max_choices: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 16
    """The largest n of a request."""


class ModelLive(_Live):
    """Of a model."""

    num_speculative_tokens: Annotated[int, Field(ge=0)] | None = None
    """K, one of those that the engine was built for, 0 among them; null: that of speculative_config."""
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longer prompts are refused; null: max_model_len alone is the limit."""


Live = TypeVar("Live", bound=BaseModel)


def live_settings(kind: type[Live], user_config: Any) -> Live:
    """`user_config` as a `kind`. Raises ConfigError, one line a problem."""
    try:
        return kind.model_validate(user_config or {})
    except ValidationError as error:
        raise ConfigError("\n".join(sentences(error, kind))) from None
