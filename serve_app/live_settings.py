"""What may change while requests run: the `user_config` of each deployment, which Serve hands to `reconfigure`."""

import logging
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replicas.errors import ConfigError
from serve_app.logs import LogFormat, LogLevel, write_logs
from serve_app.openai_protocol import MAX_CHOICES
from serve_app.validation_sentences import sentences

logger = logging.getLogger(__name__)

MIB = 1024 * 1024


class _Live(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    log_level: LogLevel = "INFO"
    """Of our own lines in the deployment's log."""
    log_format: LogFormat = "text"
    """json: an object a line, with the request's id."""


class IngressLive(_Live):
    """Of the ingress."""

    max_body_bytes: Annotated[int, Field(ge=1024)] = 4 * MIB
    """Larger bodies get 413."""
    max_choices: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 16
    """The largest n of a request."""


class ModelLive(_Live):
    """Of a model."""

    num_speculative_tokens: Annotated[int, Field(ge=0)] | None = None
    """K, one of those that the engine was built for, 0 among them; null: as the model's k_schedule or
    speculative_config says."""
    max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longer prompts are refused; null: max_model_len alone is the limit."""


Live = TypeVar("Live", bound=_Live)


def live_settings(kind: type[Live], user_config: Any) -> Live:
    """`user_config` as a `kind`. Raises ConfigError, one line a problem."""
    try:
        return kind.model_validate(user_config or {})
    except ValidationError as error:
        raise ConfigError("\n".join(sentences(error, kind))) from None


class LiveConfig(Generic[Live]):
    """The user_config in force, in one replica.

    One that is wrong fails the start of a replica, with its reason. A replica that serves keeps the earlier one and
    logs the reason: if it raised, Serve would kill it and start another, which would fail.
    """

    def __init__(self, kind: type[Live], apply: Callable[[Live], None]) -> None:
        """`apply` raises ConfigError for what cannot be honoured, before it changes anything."""
        self._kind = kind
        self._apply = apply
        self._serves = False
        self.current = kind()
        self._take(self.current)

    def started(self) -> None:
        """The replica serves: Serve's first health check comes after the first configuration."""
        self._serves = True

    def change(self, user_config: Any) -> None:
        """Serve's `reconfigure`. Raises ConfigError as long as the replica does not serve."""
        try:
            self._take(live_settings(self._kind, user_config))
        except ConfigError as error:
            if not self._serves:
                raise
            logger.error("user_config is refused, the earlier one stays in force: %s", error)

    def _take(self, settings: Live) -> None:
        self._apply(settings)
        write_logs(settings.log_level, settings.log_format)
        self.current = settings
