"""llama.cpp, by llama-cpp-python.

python -m benchmarks.peers.workers.llama_cpp_python MODEL.gguf
"""

import os
import sys
import time
from importlib.metadata import version
from typing import Any

from benchmarks.peers.lines import Ask, Told, serve

CONTEXT = 2048


class LlamaCpp:
    """The GGUF at `path`, on all cores."""

    def __init__(self, path: str) -> None:
        from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

        # Its own default is half of the cores.
        threads = len(os.sched_getaffinity(0))
        self._llama: Any = Llama(path, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False)

    @property
    def versions(self) -> dict[str, str]:
        """See Peer."""
        return {"llama-cpp-python": version("llama-cpp-python")}

    def answer(self, ask: Ask) -> Told:
        """See Peer."""
        chunks: list[tuple[float, int]] = []
        token_ids: list[int] = []
        self._llama.reset()
        begin = time.perf_counter()
        # Sampling costs least so: one token is left to choose from.
        for token in self._llama.generate(ask.prompt, top_k=1, temp=0.0, repeat_penalty=1.0):
            token_ids.append(int(token))
            chunks.append((time.perf_counter() - begin, 1))
            if len(token_ids) == ask.tokens:
                break
        return Told(chunks, token_ids)


if __name__ == "__main__":
    serve(lambda: LlamaCpp(sys.argv[1]))
