"""A cluster in a process of its own, which takes commands as lines and answers each with a line of JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.serve_process import PROJECT_ROOT

END_TIMEOUT_S = 90


@dataclass(frozen=True)
class ToldProcess:
    """The process, which has said that its cluster is there."""

    process: "subprocess.Popen[str]"
    address: str
    """Of the cluster."""

    def tell(self, command: str) -> dict[str, Any]:
        """Send `command`; returns the answer, when it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, "the cluster's process has ended"
        return json.loads(line)


@contextmanager
def told_process(module: str, ports: list[int], folder: Path, variables: Mapping[str, str]) -> Generator[ToldProcess]:
    """`python -m module ports`, whose log is in `folder`; the end of its input is its end."""
    environment = {**os.environ, **variables}
    environment.pop("RAY_ADDRESS", None)
    log_path = folder / "cluster.log"
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, ports)],
            cwd=PROJECT_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log_path.read_text()[-4000:]
            yield ToldProcess(process, json.loads(line)["address"])
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
