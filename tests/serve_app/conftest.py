"""What all tests of this folder share."""

import pytest


@pytest.fixture(autouse=True)
def _attempts_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.retries.PAUSES_S", (0.0, 0.0))
