"""API keys: where they come from, and the door that asks for them. Only their digests are kept or sent."""

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from replicas.errors import ConfigError
from serve_app.errors import INVALID_REQUEST, ErrorAnswer
from serve_app.settings import AppSettings, AuthSettings

DEFAULT_VARIABLE = "EYRIE_API_KEYS"
MIN_KEY_LENGTH = 16
OPEN_PATHS = frozenset({"/health", "/ready", "/version"})
"""What load balancers ask without a key."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may send requests."""

    digests: tuple[bytes, ...] = ()
    """SHA-256 of each key; none: no key is asked for."""
    is_open: bool = False
    """Without keys: other machines may send requests, too."""

    def has(self, key: str) -> bool:
        """True for one of the keys. Compares with all of them, in a time that does not depend on `key`'s bytes."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        # A sum, since `any` would stop at the first that fits.
        return sum(hmac.compare_digest(digest, known) for known in self.digests) > 0


def access_of(settings: AppSettings, environment: Mapping[str, str] = os.environ) -> Access:
    """Reads the keys that `settings` name. Raises ConfigError; its text never holds a key."""
    auth = settings.auth
    if auth == "none":
        return Access(is_open=True)
    if auth is None:
        text = environment.get(DEFAULT_VARIABLE, "").strip()
        return Access(_digests(text, DEFAULT_VARIABLE)) if text else Access()
    text, source = _configured(auth, environment)
    digests = _digests(text, source)
    if not digests:
        raise ConfigError(f"auth: {source} holds no key")
    return Access(digests)


def is_loopback(host: str) -> bool:
    """True for an address that only this machine reaches."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _configured(auth: AuthSettings, environment: Mapping[str, str]) -> tuple[str, str]:
    """The text that holds the keys, and what to call it."""
    if auth.keys_variable is not None:
        if auth.keys_variable not in environment:
            raise ConfigError(f"auth.keys_variable: {auth.keys_variable} is not set in the environment")
        return environment[auth.keys_variable], auth.keys_variable
    path = Path(str(auth.keys_file)).expanduser()
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"auth.keys_file: cannot read {path}: {reason}") from None


def _digests(text: str, source: str) -> tuple[bytes, ...]:
    """Of the keys in `text`, one a line or separated by commas; a line that begins with # is a comment."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    keys = [key.strip() for line in lines for key in line.split(",") if key.strip()]
    for number, key in enumerate(keys, 1):
        if len(key) < MIN_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                f"auth: key {number} of {source} is not usable; allowed: at least {MIN_KEY_LENGTH} visible ASCII "
                "characters"
            )
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)


class ApiKeyMiddleware:
    """Lets through who has a key; without keys this machine alone, unless the settings say `auth: none`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", "")).removeprefix(scope.get("root_path", ""))
        refusal = None if scope["type"] != "http" or path in OPEN_PATHS else self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal.response()(scope, receive, send)

    def _refusal(self, scope: Mapping[str, Any]) -> ErrorAnswer | None:
        if not self._access.digests:
            client: Sequence[Any] | None = scope.get("client")
            if self._access.is_open or client is None or is_loopback(str(client[0])):
                return None
            message = "this server has no API keys and so answers its own machine only (see `auth` in its settings)"
            return ErrorAnswer(403, message, INVALID_REQUEST, code="no_api_keys")
        given = Headers(raw=list(scope["headers"])).get("authorization", "")
        scheme, _, key = given.partition(" ")
        if scheme.lower() == "bearer" and self._access.has(key.strip()):
            return None
        message = "wrong API key" if given else "no API key: send `Authorization: Bearer KEY`"
        headers = {"WWW-Authenticate": "Bearer"}
        return ErrorAnswer(401, message, INVALID_REQUEST, code="invalid_api_key", headers=headers)
