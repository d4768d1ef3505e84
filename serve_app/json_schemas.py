"""Which JSON schemas are honoured: those of keywords that xgrammar enforces. It would ignore others silently."""

from collections.abc import Iterator, Mapping, Set
from typing import Any

from serve_app.untyped_data import list_or_none, mapping_or_none
from serve_app.validation_sentences import value_text

NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
FRAME = {"$schema", "$id", "$comment", "$defs", "definitions"}
ALTERNATIVES = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
"""Each says everything: none goes together with another, or with what is below."""
BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
PROPERTIES = {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
OF_TYPE: Mapping[str, Set[str]] = {
    "object": PROPERTIES | {"minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": BOUNDS | {"multipleOf"},
    "number": BOUNDS,
    "boolean": set(),
    "null": set(),
}
ADDRESSES = {"email", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uri-template"}
FORMATS = ADDRESSES | {"date", "time", "date-time", "duration", "uuid", "json-pointer", "relative-json-pointer"}
MAX_DEPTH = 64


def schema_problem(schema: Any, path: str = "#") -> str | None:
    """A sentence about the first thing in `schema` that cannot be enforced; None if everything can."""
    return next(_problems(schema, path, 0), None)


def _problems(schema: Any, path: str, depth: int) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    node = mapping_or_none(schema)
    if node is None:
        yield f"{path}: got {value_text(schema)}; it should be a schema"
        return
    if depth > MAX_DEPTH:
        yield f"{path}: deeper than {MAX_DEPTH} levels"
        return
    yield from _keywords(node, path)
    yield from _values(node, path)
    for name, child in _children(node):
        yield from _problems(child, f"{path}/{name}", depth + 1)


def _keywords(node: Mapping[str, Any], path: str) -> Iterator[str]:
    constraints = [key for key in node if key not in NOTES | FRAME | {"type"}]
    chosen = [key for key in constraints if key in ALTERNATIVES]
    if chosen:
        others = [key for key in constraints if key != chosen[0]]
        if "type" in node and chosen[0] not in ("enum", "const"):
            others.append("type")
        if others:
            yield f"{path}: {others[0]} beside {chosen[0]} cannot be enforced; allowed: {chosen[0]} alone"
        return
    types = _types(node)
    wrong = [name for name in types if name not in OF_TYPE]
    if wrong:
        yield f"{path}: type is {value_text(wrong[0])}; allowed: {', '.join(OF_TYPE)}"
        return
    enforced = frozenset[str]().union(*(OF_TYPE[name] for name in types))
    for key in constraints:
        if key not in enforced:
            known = any(key in keys for keys in OF_TYPE.values())
            why = "needs a type that it belongs to" if known and not types else "cannot be enforced"
            yield f"{path}: {key} {why}"


def _values(node: Mapping[str, Any], path: str) -> Iterator[str]:
    reference = node.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        yield f"{path}: $ref is {value_text(reference)}; allowed: references within the schema, beginning with #"
    if len(list_or_none(node.get("allOf")) or []) > 1:
        yield f"{path}: allOf of more than one schema cannot be enforced"
    if node.get("format") is not None and node["format"] not in FORMATS:
        yield f"{path}: format is {value_text(node['format'])}; allowed: {', '.join(sorted(FORMATS))}"
    lengths = [key for key in ("minLength", "maxLength") if key in node]
    shapes = [key for key in ("pattern", "format") if key in node]
    if len(shapes) > 1 or (shapes and lengths):
        yield f"{path}: {(lengths + shapes)[0]} beside {shapes[-1]} cannot be enforced"
    properties = mapping_or_none(node.get("properties")) or {}
    for name in list_or_none(node.get("required")) or []:
        if name not in properties:
            yield f"{path}: required names {value_text(name)}, which is not among properties"
    types = _types(node)
    for value in _listed(node):
        if types and not any(_is_of(value, name) for name in types):
            yield f"{path}: {value_text(value)} is not of type {', '.join(map(str, types))}"
    if "multipleOf" in node and (types != ["integer"] or not BOUNDS.isdisjoint(node)):
        yield f"{path}: multipleOf is enforced for type integer only, and without bounds"
    if "patternProperties" in node and node.get("additionalProperties") is not False:
        yield f"{path}: patternProperties is enforced where additionalProperties is false only"


def _children(node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in ("properties", "patternProperties", "$defs", "definitions"):
        for name, child in (mapping_or_none(node.get(key)) or {}).items():
            yield f"{key}/{name}", child
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, child in enumerate(list_or_none(node.get(key)) or []):
            yield f"{key}/{index}", child
    for key in ("items", "additionalProperties", "propertyNames"):
        if key in node:
            yield key, node[key]


def _types(node: Mapping[str, Any]) -> list[Any]:
    declared = node.get("type")
    return list_or_none(declared) or ([] if declared is None else [declared])


def _listed(node: Mapping[str, Any]) -> list[Any]:
    return (list_or_none(node.get("enum")) or []) + ([node["const"]] if "const" in node else [])


def _is_of(value: Any, name: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    if isinstance(value, int | float):
        return name == "number" or (name == "integer" and value == int(value))
    kinds = {"string": str, "array": list, "object": dict}
    return isinstance(name, str) and name in kinds and isinstance(value, kinds[name])
