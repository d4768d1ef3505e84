"""An engine without a model, and a client that reaches a replica in the same process."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replicas.config import EngineBase
from replicas.errors import EngineDeadError, RequestError
from replicas.request import Acceptance, FinishReason, GenerationRequest, RequestOutput, TokenLogprobs
from replicas.scheduling.k_policy import KPolicy
from serve_app.engine_protocol import ToolFormat
from serve_app.generation import Delta, GenerationJob, Tokenized, TokenizeJob
from serve_app.replica_deployment import ModelReplica
from serve_app.settings import ModelSettings

Script = Sequence[str | Exception | None]
Pieces = Script | Callable[[GenerationRequest], Script]
"""What an engine says, perhaps by the request."""


@dataclass(frozen=True)
class FakeStats:
    running: int
    free_blocks: int


class ByteCodec:
    """A token a byte."""

    vocab_size = 256
    tool_format: ToolFormat = None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * (not add_special_tokens) + list(text.encode())

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return list(text.encode()) + [0] * (not add_generation_prompt)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token for token in token_ids if token or not skip_special_tokens).decode(errors="replace")

    def token(self, token_id: int) -> str:
        return f"<{token_id}>"

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return token_id == 0


class FakeEngine:
    """Says `pieces`, one a step, each of them one accepted and one more token. None waits until it is aborted."""

    codec = ByteCodec()

    def __init__(self, config: EngineBase, k_policy: KPolicy, pieces: Pieces) -> None:
        self.config, self.k_policy = config, k_policy
        self._pieces = pieces
        self.requests: list[GenerationRequest] = []
        self.running = 0
        self.dead = False
        self.was_shut_down = False
        self.last: FinishReason = "stop"
        """How an answer ends."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        self.check_health()
        self.requests.append(request)
        pieces = self._pieces(request) if callable(self._pieces) else self._pieces
        count = len(request.prompt_token_ids)
        if count >= self.config.max_model_len:
            raise RequestError(
                f"{count} tokens, limit {self.config.max_model_len}", "prompt", "context_length_exceeded"
            )
        self.running += 1
        try:
            for step, piece in enumerate(pieces):
                if piece is None:
                    await asyncio.Event().wait()
                if isinstance(piece, Exception):
                    raise piece
                yield RequestOutput(
                    request_id=request.request_id,
                    token_ids=(1, 2),
                    text=piece or "",
                    num_prompt_tokens=count,
                    num_output_tokens=2 * (step + 1),
                    acceptance=Acceptance(steps=step + 1, drafted=3 * (step + 1), accepted=step + 1),
                    finish_reason=self.last if step == len(pieces) - 1 else None,
                    logprobs=_logprobs(request.sampling.logprobs),
                    num_cached_tokens=count // 2,
                )
        finally:
            self.running -= 1

    def check_health(self) -> None:
        if self.dead:
            raise EngineDeadError("the step failed: secret detail")

    def stats(self) -> FakeStats:
        return FakeStats(self.running, 100 - self.running)

    def shutdown(self) -> None:
        self.was_shut_down = True


def _logprobs(count: int | None) -> tuple[TokenLogprobs, ...] | None:
    """Of tokens 1 and 2, beside which 65 is the most likely, then 255."""
    if count is None:
        return None
    top = ((65, -0.25), (255, -math.inf))[:count]
    return (TokenLogprobs(1, -1.5, top), TokenLogprobs(2, -2.5, top))


class LocalStream:
    """Behaves as Serve's response generator: after `cancel` the next item raises."""

    def __init__(self, generator: AsyncGenerator[Delta, None]) -> None:
        self._generator = generator
        self._next: asyncio.Future[Delta] | None = None

    def __aiter__(self) -> "LocalStream":
        return self

    async def __anext__(self) -> Delta:
        self._next = asyncio.ensure_future(self._generator.__anext__())
        return await self._next

    def cancel(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.cancel()
        else:
            # As a cancelled call of Serve does: the generator is closed wherever it is suspended.
            self.closing = asyncio.ensure_future(self._generator.aclose())


class ReplicaClient:
    """A ModelClient over a replica in this process."""

    def __init__(self, replica: ModelReplica) -> None:
        self.replica = replica

    def generate(self, job: GenerationJob) -> LocalStream:
        return LocalStream(self.replica.generate(job))

    def tokenize(self, job: TokenizeJob) -> Awaitable[Tokenized]:
        return self.replica.tokenize(job)

    def detokenize(self, token_ids: tuple[int, ...]) -> Awaitable[str]:
        return self.replica.detokenize(token_ids)

    def stats(self) -> Awaitable[dict[str, float]]:
        return self.replica.stats()


class LocalClient(ReplicaClient):
    """One whose replica has a fake engine."""

    def __init__(self, settings: ModelSettings, pieces: Pieces) -> None:
        self.engines: list[FakeEngine] = []

        def build(config: EngineBase, k_policy: KPolicy) -> FakeEngine:
            self.engines.append(FakeEngine(config, k_policy, pieces))
            return self.engines[-1]

        self.process_ends = 0
        """How often the replica asked for its end."""
        super().__init__(ModelReplica(settings, build, self._end_process))

    @property
    def engine(self) -> FakeEngine:
        return self.engines[0]

    def _end_process(self) -> None:
        self.process_ends += 1
