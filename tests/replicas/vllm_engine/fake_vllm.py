"""A vLLM without a model: AsyncLLM's signatures, and outputs in the shapes of vLLM 0.32."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from replicas.errors import EngineDeadError, RequestError
from replicas.vllm_engine.library import Observer

NAMES = frozenset(
    {
        "model", "dtype", "tensor_parallel_size", "max_model_len", "max_num_seqs", "enable_prefix_caching",
        "disable_log_stats", "block_size", "speculative_config", "per_request_spec_decode_metrics",
        "distributed_executor_backend", "enforce_eager", "gpu_memory_utilization", "kv_cache_memory_bytes",
    }
)  # fmt: skip
VOCAB = 200
"""As the tiny target has it."""
K = 3
"""Drafts a step."""


@dataclass
class Logprob:
    logprob: float
    rank: int


@dataclass
class Added:
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    spec_decode_metrics: Any = None


@dataclass
class Output:
    """vllm.RequestOutput in its delta form."""

    outputs: list[Added]
    prompt_token_ids: list[int]
    prompt_logprobs: Any = None
    num_cached_tokens: int | None = None


Step = tuple[str, list[int]] | Exception | None
"""What a step adds, its last draft but one rejected; None waits until it is aborted."""


Script = Callable[[list[int], Any], list[Step]]
"""Of a prompt's tokens and vLLM's SamplingParams."""


Ends = Callable[[Any, str], bool]
"""Whether a text that is complete ended by itself."""


class FakeAsyncLLM:
    """Says `script`, a step after the other."""

    def __init__(self, script: Script, observer: Observer, speculative: Any, ends: Ends) -> None:
        self._script = script
        self._observer = observer
        self._speculative = speculative
        self.errored = False
        self.requests: list[tuple[dict[str, Any], Any, str]] = []
        self.running = 0
        self.was_shut_down = False
        self.loops: set[Any] = set()
        self._ends = ends

    async def generate(
        self, prompt: dict[str, Any], sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Output, None]:
        assert not options
        self.loops.add(asyncio.get_running_loop())
        self.requests.append((prompt, sampling_params, request_id))
        token_ids: list[int] = prompt["prompt_token_ids"]
        steps = self._script(token_ids, sampling_params)
        drafted: list[int] = []
        accepted: list[int] = []
        self.running += 1
        try:
            for index, step in enumerate(steps):
                if step is None:
                    await asyncio.Event().wait()
                    continue
                if isinstance(step, Exception):
                    raise step
                text, added_ids = step
                if self._speculative and index:
                    drafted.append(K)
                    accepted.append(len(added_ids) - 1)
                added = Added(text, added_ids, _logprobs(added_ids, sampling_params.logprobs))
                if index == len(steps) - 1:
                    whole = "".join(part[0] for part in steps if isinstance(part, tuple))
                    added.finish_reason = "stop" if self._ends(sampling_params, whole) else "length"
                    if self._speculative:
                        added.spec_decode_metrics = SimpleNamespace(
                            per_step_drafted=drafted, per_step_accepted=accepted
                        )
                self._tell(added_ids, index)
                yield Output([added], token_ids, num_cached_tokens=len(token_ids) // 2)
        finally:
            self.running -= 1

    def shutdown(self, timeout: float | None = None) -> None:
        self.was_shut_down = True

    def _tell(self, added_ids: list[int], index: int) -> None:
        accepted = len(added_ids) - 1
        drafts = SimpleNamespace(
            num_drafts=1,
            num_draft_tokens=K,
            num_accepted_tokens=accepted,
            num_draft_tokens_per_pos=[1] * K + [0],
            num_accepted_tokens_per_pos=[1] * accepted + [0] * (K + 1 - accepted),
        )
        scheduler = SimpleNamespace(
            num_running_reqs=self.running,
            num_waiting_reqs=0,
            kv_cache_usage=0.25,
            prefix_cache_stats=SimpleNamespace(queries=8, hits=4) if index == 0 else None,
            spec_decoding_stats=drafts if self._speculative and index else None,
        )
        self._observer(
            scheduler, SimpleNamespace(num_generation_tokens=len(added_ids), num_prompt_tokens=0 if index else 4)
        )


def _logprobs(token_ids: list[int], count: int | None) -> list[dict[int, Logprob]] | None:
    """Of each token -1.5 at rank 3, beside which 65 is the most likely, then 66."""
    if count is None:
        return None
    best = {65: Logprob(-0.25, 1), 66: Logprob(-0.75, 2)}
    top = {token: one for token, one in best.items() if one.rank <= count}
    return [top | {token: Logprob(-1.5, 3)} for token in token_ids]


@dataclass
class FakeVllm:
    """A VllmLibrary."""

    script: Script = lambda token_ids, params: [("Hel", [5]), ("lo ", [6, 7, 8]), ("you", [9, 10])]
    ends: Ends = lambda params, text: True
    argument_names: frozenset[str] = NAMES
    refused: Exception | None = None
    """What the start raises."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    engines: list[FakeAsyncLLM] = field(default_factory=list[FakeAsyncLLM])

    @property
    def engine(self) -> FakeAsyncLLM:
        return self.engines[-1]

    def start(self, arguments: Mapping[str, Any], observer: Observer) -> FakeAsyncLLM:
        if self.refused is not None:
            raise self.refused
        self.arguments = dict(arguments)
        self.engines.append(FakeAsyncLLM(self.script, observer, arguments.get("speculative_config"), self.ends))
        return self.engine

    def vocab_size(self, engine: FakeAsyncLLM) -> int:
        return VOCAB

    def num_blocks(self, engine: FakeAsyncLLM) -> int:
        return 40

    def sampling_params(self, given: Mapping[str, Any]) -> SimpleNamespace:
        if given["min_p"] > 0 and self.arguments.get("speculative_config"):
            # As vLLM does.
            raise RequestError("min_p does not go with speculative decoding", "min_p")
        return SimpleNamespace(**given)

    def translated(self, error: Exception) -> Exception:
        return EngineDeadError("core died") if str(error) == "dead" else error
