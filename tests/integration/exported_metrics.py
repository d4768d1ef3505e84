"""What Prometheus would see of a server: found and read as docs/metrics.md says."""

import re
import time
from collections import defaultdict
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.serve_process import Server

EXPORT_TIMEOUT_S = 60
"""A health check every 2 s, an export every 10."""

Figures = dict[str, float]
"""Of each sample's name the sum over its tags."""


def figures(server: Server) -> Figures:
    """Of all processes of the server's node."""
    found: defaultdict[str, float] = defaultdict(float)
    for targets in httpx.get(f"{_dashboard(server)}/api/prometheus/sd", timeout=20).json():
        for target in targets["targets"]:
            text = httpx.get(f"http://{target}/metrics", timeout=20).text
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    found[sample.name] += sample.value
    return dict(found)


def wait_for_figures(server: Server, wanted: Callable[[Figures], bool]) -> Figures:
    """Those that are `wanted`; fails when they do not come."""
    deadline = time.monotonic() + EXPORT_TIMEOUT_S
    while not wanted(found := figures(server)):
        ours = {name: value for name, value in found.items() if name.startswith("ray_eyrie")}
        assert time.monotonic() < deadline, f"exported after {EXPORT_TIMEOUT_S} s: {ours}"
        time.sleep(1)
    return found


def _dashboard(server: Server) -> str:
    """Its address, which Ray tells when it starts."""
    told = re.search(r"http://127\.0\.0\.1:\d+", server.log.read_text(errors="replace").partition("dashboard at")[2])
    assert told is not None, server.log.read_text(errors="replace")[:4000]
    return told[0]
