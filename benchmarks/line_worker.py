"""A process that answers every line on its input with one on its output."""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from replicas.errors import ConfigError

CLOSING_S = 30


class LineWorker:
    """One of them. What it prints besides its answers goes to the screen, as errors do."""

    def __init__(
        self, name: str, command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Start it; `name` is what an error calls it."""
        self._name = name
        self._process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd, env=env)

    def read(self) -> bytes:
        """Its next line. Raises ConfigError if the process ends instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"{self._name} ended with status {self._process.wait()}; see above")
        return line

    def ask(self, line: bytes) -> bytes:
        """Its answer to `line`. Raises ConfigError if the process ends instead."""
        assert self._process.stdin is not None
        # Whoever has ended reads no more; what it said before is on the screen.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        return self.read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
