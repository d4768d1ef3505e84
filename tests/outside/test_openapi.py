"""schemathesis against our OpenAPI document: whatever it sends, the fault is never ours. `make test-api`."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi import checks

from serve_app.api_keys import Access
from tests.serve_app.local_site import Site

CASES = 2000
SITE = Site(max_model_len=4096, access=Access(is_open=True))
SETTINGS: dict[str, Any] = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def requests_that_are(mode: str) -> Any:
    """As the document says (positive), or not (negative): left to itself the ratio differs from release to release."""
    config = SchemathesisConfig.from_dict({"generation": {"mode": mode}})
    return schemathesis.openapi.from_asgi("/openapi.json", SITE.app, config=config)


RIGHT = requests_that_are("positive")
WRONG = requests_that_are("negative").include(method="POST")
"""Of the others there is nothing that could be wrong."""


@pytest.fixture(scope="module")
def statuses() -> Iterator[Counter[int]]:
    """How often each was answered; at the end, whether there was enough of both kinds."""
    counted: Counter[int] = Counter()
    yield counted
    print(dict(counted))
    assert counted.total() >= CASES
    assert min(counted[200], counted[400]) > CASES // 5


@RIGHT.parametrize()
@settings(max_examples=600, **SETTINGS)
def test_what_the_document_allows_is_answered_as_it_tells(case: schemathesis.Case, statuses: Counter[int]) -> None:
    """No 5xx; status, content type and body as documented."""
    # Options that contradict each other are refused, which no schema says.
    answer = case.call_and_validate(excluded_checks=[checks.positive_data_acceptance])
    statuses[answer.status_code] += 1


@WRONG.parametrize()
@settings(max_examples=300, **SETTINGS)
def test_what_the_document_forbids_is_refused(case: schemathesis.Case, statuses: Counter[int]) -> None:
    """No 5xx, and an error that the document tells of."""
    statuses[case.call_and_validate().status_code] += 1
