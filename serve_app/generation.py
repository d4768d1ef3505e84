"""What the ingress and a replica say to each other. Small and frozen: a delta crosses a process boundary a step."""

from dataclasses import dataclass

from replicas.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn; the roles are those that the model's chat template knows."""

    role: str
    content: str


Prompt = str | tuple[int, ...] | tuple[ChatMessage, ...]
"""A text, token ids, or a chat."""


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One answer to generate. The replica tokenises: the ingress has no tokenizer."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added, and the counts so far."""

    text: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_speculative_tokens: int
    """K of this request: the model's, under the request's cap."""
    steps: int
    drafted: int
    accepted: int
    mean_acceptance_length: float
    finish_reason: FinishReason | None
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
