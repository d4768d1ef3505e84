"""Which schemas are taken, and that xgrammar enforces what we let through."""

import json
from typing import Any

import pytest

from replicas.request import Grammar
from replicas.structured_output import Grammars
from serve_app.json_schemas import schema_problem

STOP = 256


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    """A token a byte."""
    return Grammars(lambda: [*(bytes([code]) for code in range(256)), b""], 257, [STOP])


def takes(grammars: Grammars, schema: Any, text: str) -> bool:
    matcher = grammars.matcher(Grammar("json_schema", json.dumps(schema), "response_format"))
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(STOP)


CLOSED = {"additionalProperties": False}
NODE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "minimum": 10, "exclusiveMaximum": 20}, "12", ["9", "20", "1.5"]),
        ({"type": "integer", "multipleOf": 5}, "15", ["12"]),
        ({"type": "number", "maximum": 10.5}, "10.25", ["11"]),
        ({"type": ["integer", "null"], "minimum": 10}, "null", ["9", '"a"']),
        ({"type": "string", "minLength": 2, "maxLength": 3}, '"ab"', ['"a"', '"abcd"']),
        ({"type": "string", "pattern": "^a+b$"}, '"aab"', ['"b"', '"aabx"']),
        ({"type": "string", "format": "date"}, '"2026-11-30"', ['"today"']),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}, "[true]", ["[]", "[1]"]),
        (
            {"type": "array", "prefixItems": [{"type": "null"}], "items": {"const": 1}},
            "[null, 1]",
            ["[1]", "[null, 2]"],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
            '{"a": null}',
            ["{}", '{"a": 1}'],
        ),
        ({"type": "object", "additionalProperties": {"type": "null"}}, '{"x": null}', ['{"x": 1}']),
        ({"type": "object", "minProperties": 1, "maxProperties": 1}, '{"a": 1}', ["{}", '{"a": 1, "b": 1}']),
        (
            {"type": "object", "properties": {"a": {}}, "patternProperties": {"^b": {"type": "null"}}} | CLOSED,
            '{"a": 1, "b": null}',
            ['{"a": 1, "b": 1}'],
        ),
        ({"type": "object", "propertyNames": {"type": "string", "pattern": "^a$"}}, '{"a": 1}', ['{"b": 1}']),
        ({"enum": ["a", 1, None], "title": "x"}, "null", ['"b"', "2"]),
        ({"type": "string", "enum": ["a", "b"]}, '"b"', ['"c"', "1"]),
        ({"const": {"a": [1]}, "description": "x"}, '{"a":[1]}', ["1"]),
        ({"anyOf": [{"type": "null"}, {"const": 7}]}, "7", ["8"]),
        ({"allOf": [{"type": "null"}]}, "null", ["1"]),
        ({"$ref": "#/$defs/n", "$defs": {"n": NODE}}, '{"next": {"next": null}}', ['{"next": 1}']),
        (True, "[1]", ["x"]),
    ],
)
def test_what_is_taken_is_enforced(grammars: Grammars, schema: Any, right: str, wrong: list[str]) -> None:
    assert schema_problem(schema) is None
    assert takes(grammars, schema, right)
    assert [takes(grammars, schema, text) for text in wrong] == [False] * len(wrong)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"not": {"type": "null"}}, "#: not cannot be enforced"),
        ({"type": "array", "uniqueItems": True}, "#: uniqueItems cannot be enforced"),
        ({"type": "array", "contains": {}}, "#: contains cannot be enforced"),
        ({"type": "string", "maxlen": 1}, "#: maxlen cannot be enforced"),
        ({"type": "string", "minimum": 1}, "#: minimum cannot be enforced"),
        ({"minimum": 1}, "#: minimum needs a type that it belongs to"),
        ({"type": "intger"}, "#: type is 'intger'; allowed: object, array"),
        ({"type": ["string", 3]}, "#: type is 3; allowed"),
        ({"type": "number", "multipleOf": 0.5}, "#: multipleOf cannot be enforced"),
        ({"type": ["integer", "number"], "multipleOf": 2}, "#: multipleOf is enforced for type integer only"),
        ({"type": "integer", "multipleOf": 2, "minimum": 3}, "#: multipleOf is enforced for type integer only, and wi"),
        ({"type": "object", "patternProperties": {"^b": {}}}, "#: patternProperties is enforced where additionalProp"),
        ({"type": "string", "format": "iri"}, "#: format is 'iri'; allowed: date, date-time"),
        ({"type": "string", "pattern": "a", "minLength": 2}, "#: minLength beside pattern cannot be enforced"),
        ({"type": "string", "format": "date", "maxLength": 2}, "#: maxLength beside format cannot be enforced"),
        ({"allOf": [{}, {}]}, "#: allOf of more than one schema cannot be enforced"),
        ({"anyOf": [{}], "minimum": 3}, "#: minimum beside anyOf cannot be enforced; allowed: anyOf alone"),
        ({"anyOf": [{}], "type": "null"}, "#: type beside anyOf cannot be enforced"),
        ({"enum": [1], "minimum": 3}, "#: minimum beside enum cannot be enforced"),
        ({"type": "string", "enum": ["a", 1]}, "#: 1 is not of type string"),
        ({"type": "integer", "const": True}, "#: True is not of type integer"),
        ({"$ref": "http://x/y"}, "#: $ref is 'http://x/y'; allowed: references within the schema"),
        (
            {"type": "object", "properties": {}, "required": ["b"]},
            "#: required names 'b', which is not among properties",
        ),
        ({"type": "object", "properties": {"a": {"items": [{"not": {}}]}}}, "#/properties/a: items needs a type"),
        ({"anyOf": [{}, {"type": "array", "items": {"if": {}}}]}, "#/anyOf/1/items: if cannot be enforced"),
        ({"$defs": {"n": {"if": {}}}}, "#/$defs/n: if cannot be enforced"),
        (3, "#: got 3; it should be a schema"),
    ],
)
def test_what_xgrammar_would_ignore_is_refused(schema: Any, sentence: str) -> None:
    problem = schema_problem(schema)
    assert problem is not None
    assert problem.startswith(sentence)


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"type": "array", "items": schema}
    assert "deeper than 64 levels" in str(schema_problem(schema))
