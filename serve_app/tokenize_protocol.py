"""Bodies and answers of /tokenize and /detokenize, in vLLM's shapes."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, model_validator

from replicas.errors import RequestError
from serve_app.chat_messages import Message, turns_of
from serve_app.generation import TokenizeJob
from serve_app.request_model import RequestBody, without_neutral
from serve_app.tool_protocol import Tool, offered_tools

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "mm_processor_kwargs": ({},),
}


class TokenizeRequest(RequestBody):
    """A text or a chat to tokenise."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = NEUTRAL

    model: str | None = None
    """Needed where several models are served."""
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    """Of a prompt, true by default; a chat's special tokens come from its template."""
    add_generation_prompt: bool | None = None
    """Of a chat, true by default."""
    return_token_strs: bool | None = None
    tools: list[Tool] | None = None
    """Of a chat."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return without_neutral(data, cls.unsupported)

    def job(self) -> TokenizeJob:
        """For the replica. Raises RequestError if there is not exactly one of prompt and messages."""
        wants_strings = bool(self.return_token_strs)
        if self.messages is not None and self.prompt is None:
            if self.add_special_tokens:
                raise RequestError(
                    "add_special_tokens is true; a chat's special tokens come from its template", "add_special_tokens"
                )
            add_prompt = self.add_generation_prompt is not False
            tools = offered_tools(self.tools, None)
            return TokenizeJob(
                turns_of(self.messages), add_generation_prompt=add_prompt, wants_strings=wants_strings, tools=tools
            )
        if self.prompt is None or self.messages is not None:
            raise RequestError("allowed: one of prompt and messages", "prompt")
        if self.tools:
            raise RequestError("tools are only allowed with messages", "tools")
        if self.add_generation_prompt is not None:
            raise RequestError("add_generation_prompt is only allowed with messages", "add_generation_prompt")
        return TokenizeJob(self.prompt, self.add_special_tokens is not False, wants_strings=wants_strings)


class TokenizeAnswer(BaseModel):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestBody):
    """Token ids whose text is asked for."""

    model: str | None = None
    tokens: list[int]


class DetokenizeAnswer(BaseModel):
    """Answer of /detokenize."""

    prompt: str
