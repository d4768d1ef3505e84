"""The turns of a chat as the OpenAI API has them."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from replicas.errors import RequestError
from serve_app.generation import ChatMessage
from serve_app.request_model import RequestBody, without_neutral
from serve_app.tool_protocol import FunctionName
from serve_app.untyped_data import list_or_none, mapping_or_none
from serve_app.validation_sentences import value_text

MESSAGE_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "refusal": (),
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


def _json_object(arguments: str) -> str:
    try:
        data: Any = json.loads(arguments)
    except ValueError:
        data = None
    if mapping_or_none(data) is None:
        raise ValueError(f"got {value_text(arguments)}; it should be a JSON object")
    return arguments


class CalledFunction(RequestBody):
    """Of a ToolCall."""

    name: FunctionName
    arguments: Annotated[str, AfterValidator(_json_object)]


class ToolCall(RequestBody):
    """A call of an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
CONTENT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "items": TEXT_PART, "minItems": 1}, {"type": "null"}]}


class Message(RequestBody):
    """A turn of a chat. `developer` is OpenAI's newer word for `system`."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = MESSAGE_NEUTRAL

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[ToolCall] | None = Field(default=None, validate_default=True)
    """Of an assistant only."""
    tool_call_id: str | None = Field(default=None, validate_default=True)
    """Of a tool only, which has to name the call."""
    content: Annotated[str | None, BeforeValidator(_joined_parts), WithJsonSchema(CONTENT_SCHEMA)] = Field(
        default=None, validate_default=True
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        try:
            return without_neutral(data, cls.unsupported)
        except RequestError as error:
            # As a ValueError it gets the path of the message before it.
            raise ValueError(error.message) from None

    @field_validator("tool_calls")
    @classmethod
    def _assistants_call(cls, calls: list[ToolCall] | None, info: ValidationInfo) -> list[ToolCall] | None:
        if calls and info.data.get("role") != "assistant":
            raise ValueError("only allowed where role is assistant")
        return calls

    @field_validator("tool_call_id")
    @classmethod
    def _tools_answer(cls, call_id: str | None, info: ValidationInfo) -> str | None:
        if "role" in info.data and (call_id is None) == (info.data["role"] == "tool"):
            raise ValueError("required where role is tool, and only allowed there")
        return call_id

    @field_validator("content")
    @classmethod
    def _says_something(cls, content: str | None, info: ValidationInfo) -> str | None:
        if content is None and not info.data.get("tool_calls"):
            raise ValueError("got None; it should be a string")
        return content


def turns_of(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """As the replica takes them."""
    return tuple(
        ChatMessage(
            "system" if message.role == "developer" else message.role,
            message.content or "",
            tuple((call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()),
            message.tool_call_id,
        )
        for message in messages
    )
