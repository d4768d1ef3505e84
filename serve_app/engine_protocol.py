"""What a replica needs of an engine. AsyncEngine has it, VllmEngine has it, and so have the fakes of the tests."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from replicas.config import EngineBase, EngineConfig
from replicas.request import GenerationRequest, RequestOutput
from replicas.scheduling.k_policy import KPolicy
from replicas.vllm_engine.config import VllmConfig

ToolFormat = Literal["hermes", "other"] | None
"""How a chat template writes tools and calls; None: it knows none."""

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Codec(Protocol):
    """Text to tokens, and back."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    @property
    def tool_format(self) -> ToolFormat: ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class AsyncEngine(Protocol):
    """An engine on a thread of its own."""

    @property
    def config(self) -> EngineBase: ...

    @property
    def codec(self) -> Codec: ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        """One output a step; raises RequestError or EngineDeadError; closing it aborts the request."""
        ...

    def check_health(self) -> None:
        """Raises EngineDeadError if no step can run any more."""
        ...

    def stats(self) -> "DataclassInstance":
        """Figures as of the last step: a flat dataclass of numbers."""
        ...

    def shutdown(self) -> None: ...


EngineBuilder = Callable[[EngineBase, KPolicy], AsyncEngine]
"""Blocks until the engine is warm. Raises CheckpointError or ConfigError."""


def build_served_engine(config: EngineBase, k_policy: KPolicy) -> AsyncEngine:
    """The engine that `config` is of: ours or vLLM."""
    # Imported here: the processes that only build or relay (driver, ingress) do without torch.
    if isinstance(config, VllmConfig):
        from replicas.vllm_engine.engine import build_vllm_engine

        return build_vllm_engine(config, k_policy)
    from replicas.async_engine import build_async_engine

    return build_async_engine(EngineConfig.model_validate(config), k_policy)
