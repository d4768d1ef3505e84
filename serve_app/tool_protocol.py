"""Tools in a chat request: their definitions, and whether they may or must be called."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from replicas.errors import RequestError
from replicas.request import Grammar
from serve_app.guidance import schema_grammar
from serve_app.hermes_parser import CLOSE, OPEN
from serve_app.request_model import RequestBody

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Function(RequestBody):
    """What can be called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: bool | None = None
    """True: a call of it fits the schema, which is enforced."""


class Tool(RequestBody):
    """The only kind there is."""

    type: Literal["function"]
    function: Function


class NamedFunction(RequestBody):
    """Of a NamedChoice."""

    name: FunctionName


class NamedChoice(RequestBody):
    """The tool that has to be called."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


def offered_tools(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> tuple[dict[str, Any], ...]:
    """The tools that the model is told of, as plain data. Raises RequestError for a choice that cannot be honoured."""
    names = [tool.function.name for tool in tools or ()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"tools: {twice!r} is defined twice", "tools", "invalid_value")
    if choice == "required" or isinstance(choice, NamedChoice):
        wanted = choice.function.name if isinstance(choice, NamedChoice) else choice
        if not names or (isinstance(choice, NamedChoice) and wanted not in names):
            known = ", ".join(names) or "none, as there are no tools"
            raise RequestError(f"tool_choice: got {wanted!r}; allowed: {known}", "tool_choice")
    if choice == "none":
        return ()
    return tuple(tool.model_dump(exclude_none=True) for tool in tools or ())


def call_grammar(tools: Sequence[Tool], choice: ToolChoice | None, one_call: bool) -> Grammar | None:
    """What enforces `choice`, and the schemas of strict tools; None if nothing has to be enforced.

    Raises RequestError for a schema that cannot be.
    """
    if choice == "none":
        return None
    if isinstance(choice, NamedChoice):
        called = [tool for tool in tools if tool.function.name == choice.function.name]
        return _tag_grammar({"type": "tags_with_separator", "separator": "\n", "at_least_one": True}, called, True)
    if choice == "required":
        return _tag_grammar({"type": "tags_with_separator", "separator": "\n", "at_least_one": True}, tools, one_call)
    if any(tool.function.strict for tool in tools):
        return _tag_grammar({"type": "triggered_tags", "triggers": [OPEN], "at_least_one": False}, tools, one_call)
    return None


def _tag_grammar(form: dict[str, Any], tools: Sequence[Tool], one_call: bool) -> Grammar:
    tags = [_tag(tool.function) for tool in tools]
    text = json.dumps({"type": "structural_tag", "format": form | {"tags": tags, "stop_after_first": one_call}})
    return Grammar("structural_tag", text, "tools")


def _tag(function: Function) -> dict[str, Any]:
    schema = function.parameters or {"type": "object"}
    schema_grammar(schema, "tools")
    return {
        "type": "tag",
        "begin": f'{OPEN}\n{{"name": {json.dumps(function.name)}, "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": f"}}\n{CLOSE}",
    }
