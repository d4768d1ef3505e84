"""A script that starts a cluster of its own, run to its end for the one line of JSON that it prints."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.integration.serve_process import PROJECT_ROOT

VARIABLES = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(PROJECT_ROOT)}


def answer_of(*arguments: str, timeout_s: float, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What `python -m arguments` says, printed as well."""
    process = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=PROJECT_ROOT,
        env={**os.environ, **VARIABLES, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    # Ray writes to standard output, too.
    [line] = [line for line in process.stdout.splitlines() if line.startswith("{")]
    seen = json.loads(line)
    print(seen)
    return seen
