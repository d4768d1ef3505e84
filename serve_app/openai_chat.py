"""The chat request of the OpenAI API, as far as it can be honoured."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from replicas.errors import RequestError
from replicas.request import SamplingParams
from serve_app.generation import ChatMessage, Prompt
from serve_app.openai_protocol import NEUTRAL, GenerationOptions, LogprobCount, RequestBody, without_neutral
from serve_app.untyped_data import list_or_none, mapping_or_none
from serve_app.validation_sentences import value_text

CHAT_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
MESSAGE_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "refusal": (),
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
    "annotations": ([],),
}
"""What the openai client sends back with an earlier answer."""


def _joined_parts(value: object) -> object:
    """Text parts as one string."""
    texts: list[str] = []
    for index, item in enumerate(parts := list_or_none(value) or []):
        part = mapping_or_none(item) or {}
        text = part.get("text")
        if part.keys() != {"type", "text"} or part["type"] != "text" or not isinstance(text, str):
            raise ValueError(f'part {index} is {value_text(item)}; allowed: {{"type": "text", "text": "..."}}')
        texts.append(text)
    return "".join(texts) if parts else value


class Message(RequestBody):
    """A turn of a chat. `developer` is OpenAI's newer word for `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_joined_parts)]

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        try:
            return without_neutral(data, MESSAGE_NEUTRAL)
        except RequestError as error:
            # As a ValueError it gets the path of the message before it.
            raise ValueError(error.message) from None


def turns_of(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """As the replica takes them."""
    return tuple(ChatMessage("system" if m.role == "developer" else m.role, m.content) for m in messages)


class ChatCompletionRequest(GenerationOptions):
    """Body of /v1/chat/completions."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = CHAT_NEUTRAL

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    def prompt_and_sampling(self) -> tuple[Prompt, SamplingParams]:
        """What to generate. Raises RequestError if two options contradict each other."""
        limits = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(limits) > 1:
            raise RequestError(
                f"max_tokens is {self.max_tokens} but max_completion_tokens is {self.max_completion_tokens}; "
                "allowed: one of them",
                "max_tokens",
            )
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return turns_of(self.messages), self.sampling(next(iter(limits), None), logprobs)
