"""Answers in the shapes of the OpenAI API. Streams write theirs by hand (serve_app.sse)."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from serve_app.generation import Delta
from serve_app.openai_logprobs import ChatLogprobs, CompletionLogprobs


class SpeculationUsage(BaseModel):
    """How speculation went for one request, its choices together."""

    method: str | None
    """null: the model has no drafter."""
    num_speculative_tokens: int
    """K after the request's cap; 0: off."""
    steps: int
    drafted: int
    accepted: int
    mean_acceptance_length: float


class PromptTokensDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int
    """Whose KV was found in the prefix cache."""


class Usage(BaseModel):
    """Tokens, and our `speculation` beside them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    speculation: SpeculationUsage


class AssistantMessage(BaseModel):
    """What a chat model said."""

    role: Literal["assistant"] = "assistant"
    content: str


class FunctionCall(BaseModel):
    """Of a MessageToolCall."""

    name: str
    arguments: str


class MessageToolCall(BaseModel):
    """A tool that the model calls."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class CallingMessage(BaseModel):
    """What a chat model said that calls tools."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    tool_calls: list[MessageToolCall]


class ChatChoice(BaseModel):
    """One answer to a chat."""

    index: int
    message: AssistantMessage | CallingMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(BaseModel):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionChoice(BaseModel):
    """One completion of a text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str


class Completion(BaseModel):
    """Answer of /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ModelSpeculation(BaseModel):
    """What a model speculates with."""

    method: str
    num_speculative_tokens: int


class Model(BaseModel):
    """OpenAI's model object; the last two keys are ours."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "eyrie"
    max_model_len: int
    speculation: ModelSpeculation | None


class ModelList(BaseModel):
    """Answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


def usage_of(lasts: Sequence[Delta], method: str | None) -> Usage:
    """The usage of a request whose choices' last deltas are `lasts`: what was generated is summed over the choices."""
    first = lasts[0]
    output = sum(last.num_output_tokens for last in lasts)
    steps, drafted, accepted = (sum(getattr(last, name) for last in lasts) for name in ("steps", "drafted", "accepted"))
    return Usage(
        prompt_tokens=first.num_prompt_tokens,
        completion_tokens=output,
        total_tokens=first.num_prompt_tokens + output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=first.num_cached_tokens),
        speculation=SpeculationUsage(
            method=method,
            num_speculative_tokens=first.num_speculative_tokens,
            steps=steps,
            drafted=drafted,
            accepted=accepted,
            mean_acceptance_length=1.0 + accepted / steps if steps else 1.0,
        ),
    )
