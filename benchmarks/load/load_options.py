"""What a load is asked to be, from the command line or the page, checked before its first request. Needs no locust."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load.chat_client import ChatSettings
from benchmarks.load.recording import Arrivals, Recording, first_model, load_session
from benchmarks.workloads import read_prompts
from replicas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Locust's and ours, as `locustfile` names them."""

    host: str
    model: str
    max_tokens: int
    no_stream: bool
    ignore_eos: bool
    arrivals: Arrivals
    rate: float
    prompts: str
    seed: int

    @staticmethod
    def of(options: object, host: str | None, form: Mapping[str, str] | None = None) -> "LoadOptions":
        """Of locust's parsed `options`; what a page's `form` says goes before. Raises ConfigError, in one sentence."""
        given: dict[str, Any] = {field.name: getattr(options, field.name, None) for field in fields(LoadOptions)}
        given["host"] = host or ""
        for name, text in (form or {}).items():
            if name in given:
                given[name] = _as_type_of(given[name], name, text)
        found = LoadOptions(**given)
        found.check()
        return found

    def check(self) -> None:
        """Raises ConfigError, in one sentence."""
        if not self.host.startswith(("http://", "https://")):
            got = repr(self.host) if self.host else "none"
            raise ConfigError(f"--host: got {got}; allowed: the server's address, as http://127.0.0.1:8000")
        if self.arrivals not in ("closed", "poisson"):
            raise ConfigError(f"--arrivals: got {self.arrivals!r}; allowed: closed, poisson")
        if self.arrivals == "poisson" and not (self.rate > 0 and math.isfinite(self.rate)):
            raise ConfigError(f"--rate: got {self.rate}; allowed: requests a second above 0")
        if self.max_tokens < 1:
            raise ConfigError(f"--max-tokens: got {self.max_tokens}; allowed: 1 or more")

    def recording(self) -> Recording:
        """What begins now. Raises ConfigError for prompts that cannot be read and a server that names no model."""
        try:
            prompts = read_prompts(Path(self.prompts))
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"--prompts: {self.prompts!r} cannot be read: {error}") from error
        if not prompts:
            raise ConfigError(f"--prompts: {self.prompts!r} holds no prompt")
        key = os.environ.get("OPENAI_API_KEY")
        client = httpx.Client(
            base_url=self.host,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(600.0, connect=10.0),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        model = self.model or first_model(client)
        settings = ChatSettings(model, self.max_tokens, not self.no_stream, ignore_eos=self.ignore_eos)
        rate = self.rate if self.arrivals == "poisson" else None
        session = load_session(self.host, self.arrivals, rate, settings)
        return Recording(client, settings, prompts, self.arrivals, session, self.seed)


def _as_type_of(value: object, name: str, text: str) -> object:
    """As locust reads a form: of the type that the option has."""
    if isinstance(value, bool):
        return text == "true"
    if isinstance(value, int | float):
        try:
            return type(value)(text)
        except ValueError:
            kind = "a whole number" if isinstance(value, int) else "a number"
            raise ConfigError(f"--{name.replace('_', '-')}: got {text!r}; allowed: {kind}") from None
    return text
