"""A server that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.integration.serve_process import SAME_LOOP_MODE, Server, demo_config, running, steady_ports


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo as `make serve` runs it."""
    [port] = steady_ports(1)
    with running(demo_config(port), tmp_path_factory.mktemp("serve"), SAME_LOOP_MODE) as running_server:
        yield running_server
