"""schemathesis against our OpenAPI document: whatever it sends, the fault is never ours. `make test-api`."""

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi import checks

from tests.serve_app.local_site import Site

CASES_A_ROUTE = 40
SITE = Site(max_model_len=4096)
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", SITE.app)


@SCHEMA.parametrize()
@settings(max_examples=CASES_A_ROUTE, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_that_the_document_tells_of(case: schemathesis.Case) -> None:
    """No 5xx; status, content type and body as documented; what the schema forbids is refused."""
    # Options that contradict each other are refused, which no schema says.
    case.call_and_validate(excluded_checks=[checks.positive_data_acceptance])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_the_document_has_the_routes_with_bodies(path: str) -> None:
    assert "post" in SITE.app.openapi()["paths"][path]
