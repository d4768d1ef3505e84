"""What a request says that its text has to be: response_format, guided_regex, guided_choice."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from replicas.errors import RequestError
from replicas.request import Grammar
from serve_app.json_schemas import schema_problem
from serve_app.request_model import RequestBody

MAX_GRAMMAR_CHARACTERS = 65536
ANY_OBJECT = '{"type": "object"}'


class PlainFormat(RequestBody):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaSpec(RequestBody):
    """Of a SchemaFormat."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None
    """Of no effect: the schema is always enforced."""


class SchemaFormat(RequestBody):
    """JSON by a schema."""

    type: Literal["json_schema"]
    json_schema: SchemaSpec


ResponseFormat = Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")]
Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1024)]


def grammar_of(
    response_format: PlainFormat | SchemaFormat | None, regex: str | None, choices: list[str] | None
) -> Grammar | None:
    """The one that they ask for. Raises RequestError if they contradict each other, or cannot be enforced."""
    found: list[Grammar] = []
    if isinstance(response_format, SchemaFormat):
        found.append(schema_grammar(response_format.json_schema.schema_, "response_format"))
    elif response_format is not None and response_format.type == "json_object":
        found.append(Grammar("json_schema", ANY_OBJECT, "response_format"))
    if regex is not None:
        found.append(Grammar("regex", regex, "guided_regex"))
    if choices is not None:
        found.append(Grammar("choice", json.dumps(choices), "guided_choice"))
    return only_one(found)


def only_one(grammars: list[Grammar]) -> Grammar | None:
    """The grammar of a request, which may have one at most. Raises RequestError."""
    if len(grammars) > 1:
        first, second, *_ = grammars
        raise RequestError(f"{second.param} beside {first.param}; allowed: one of them", second.param)
    for grammar in grammars:
        if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
            raise RequestError(
                f"{grammar.param} has {len(grammar.text)} characters; allowed: {MAX_GRAMMAR_CHARACTERS}", grammar.param
            )
    return grammars[0] if grammars else None


def schema_grammar(schema: dict[str, Any], param: str) -> Grammar:
    """JSON by `schema`. Raises RequestError for a keyword that cannot be enforced."""
    problem = schema_problem(schema)
    if problem is not None:
        raise RequestError(f"{param}: {problem}", param, "unsupported_schema")
    return Grammar("json_schema", json.dumps(schema), param)
