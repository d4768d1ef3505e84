"""Tools in a chat request: their definitions, and whether they may or must be called."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from replicas.errors import RequestError
from serve_app.request_model import RequestBody

FunctionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Function(RequestBody):
    """What can be called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object."""
    strict: Literal[False] | None = None


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
        if isinstance(choice, NamedChoice) and choice.function.name not in names:
            known = ", ".join(names) or "none, as there are no tools"
            raise RequestError(f"tool_choice: got {choice.function.name!r}; allowed: {known}", "tool_choice")
        raise RequestError("tool_choice: a call cannot be enforced; allowed: none, auto", "tool_choice")
    if choice == "none":
        return ()
    return tuple(tool.model_dump(exclude_none=True) for tool in tools or ())
