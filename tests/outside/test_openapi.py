"""schemathesis against our OpenAPI document: whatever it sends, the fault is never ours. `make test-api`."""

from collections import Counter
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi import checks

from serve_app.api_keys import Access
from tests.serve_app.local_site import Site

CASES = 2000
SITE = Site(max_model_len=4096, access=Access(is_open=True))
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", SITE.app)


@pytest.fixture(scope="module")
def statuses() -> Iterator[Counter[int]]:
    """How often each was answered; at the end, whether there was enough of both kinds."""
    counted: Counter[int] = Counter()
    yield counted
    print(dict(counted))
    assert counted.total() >= CASES
    assert min(counted[200], counted[400]) > CASES // 5


@SCHEMA.parametrize()
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_tells_of(case: schemathesis.Case, statuses: Counter[int]) -> None:
    """No 5xx; status, content type and body as documented; what the schema forbids is refused."""
    # Options that contradict each other are refused, which no schema says.
    answer = case.call_and_validate(excluded_checks=[checks.positive_data_acceptance])
    statuses[answer.status_code] += 1
