"""API keys: where they are read, whom they let in."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from replicas.errors import ConfigError
from serve_app.api_keys import Access, access_of, is_loopback
from serve_app.settings import AppSettings
from tests.serve_app.local_site import CHAT, Site

KEY, OTHER = "sk-0123456789abcdef", "sk-fedcba9876543210"


def settings(auth: Any = None) -> AppSettings:
    return AppSettings.model_validate({"models": [{"id": "m", "model": "."}], "auth": auth})


def ask(access: Access, path: str = "/v1/models", client: str = "127.0.0.1", **headers: str | bytes) -> httpx.Response:
    site = Site(access=access)
    return site.send("GET", path, headers=headers, client=(client, 5))


@pytest.mark.parametrize("text", [f"{KEY},{OTHER}", f" {KEY} , {OTHER},\n", f"# ours\n{KEY}\n\n{OTHER}\n"])
def test_keys_of_a_variable_or_a_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text)
    for access in (
        access_of(settings(), {"EYRIE_API_KEYS": text}),
        access_of(settings({"keys_variable": "MY_KEYS"}), {"MY_KEYS": text}),
        access_of(settings({"keys_file": str(tmp_path / "keys")}), {}),
    ):
        assert [access.has(key) for key in (KEY, OTHER, "", KEY[:-1], KEY + "x")] == [True, True, False, False, False]
        assert KEY not in repr(access)


def test_without_keys_and_with_auth_none() -> None:
    assert access_of(settings(), {}) == Access()
    assert access_of(settings("none"), {"EYRIE_API_KEYS": KEY}) == Access(is_open=True)


@pytest.mark.parametrize(
    ("auth", "variables", "sentence"),
    [
        ({"keys_variable": "ABSENT"}, {}, "auth.keys_variable: ABSENT is not set"),
        ({"keys_variable": "A"}, {"A": " ,"}, "auth: A holds no key"),
        ({"keys_file": "/nowhere/keys"}, {}, "auth.keys_file: cannot read /nowhere/keys: No such file"),
        (
            None,
            {"EYRIE_API_KEYS": f"{KEY},secret"},
            "key 2 of EYRIE_API_KEYS is not usable; allowed: at least 16",
        ),
        (None, {"EYRIE_API_KEYS": "a key with blanks in it"}, "key 1 of EYRIE_API_KEYS is not usable"),
    ],
)
def test_keys_that_cannot_be_used_are_refused(auth: Any, variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        access_of(settings(auth), variables)
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("auth", [{}, {"keys_file": "a", "keys_variable": "b"}, {"keys": "a"}, "nobody", True])
def test_auth_that_is_none_of_the_allowed(auth: Any) -> None:
    with pytest.raises(ConfigError, match=r"^auth"):
        settings(auth)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {KEY}", 200),
        (f"bearer {KEY}", 200),
        (f"Bearer {OTHER}", 401),
        (f"Basic {KEY}", 401),
        (KEY, 401),
        ("Bearer", 401),
        (b"Bearer \xe9", 401),
    ],
)
def test_a_request_needs_one_of_the_keys(header: str | bytes, status: int) -> None:
    access = access_of(settings(), {"EYRIE_API_KEYS": KEY})
    answer = ask(access, authorization=header)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert "x-request-id" in answer.headers


def test_a_request_without_a_key_never_reaches_the_model() -> None:
    site = Site(access=access_of(settings(), {"EYRIE_API_KEYS": KEY}))
    for path in ("/v1/chat/completions", "/tokenize"):
        assert site.send("POST", path, json=CHAT).status_code == 401
    assert site.client.engine.requests == []
    for path in ("/stats", "/openapi.json", "/docs", "/v1/models/m"):
        assert site.send("GET", path).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/ready", "/version"])
def test_a_load_balancer_needs_none(path: str) -> None:
    assert ask(access_of(settings(), {"EYRIE_API_KEYS": KEY}), path, client="10.0.0.1").status_code == 200


@pytest.mark.parametrize(("client", "status"), [("127.0.0.1", 200), ("::1", 200), ("10.0.0.1", 403)])
def test_without_keys_only_this_machine_is_served(client: str, status: int) -> None:
    assert ask(Access(), client=client).status_code == status
    assert ask(Access(is_open=True), client=client).status_code == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org")),
    ],
)
def test_what_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
