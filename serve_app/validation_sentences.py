"""pydantic's errors as sentences: one a problem, with the path, the value and what is allowed."""

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from serve_app.untyped_data import list_or_none, mapping_or_none

MAX_VALUE_CHARACTERS = 80
WHOLE = "(the whole)"
"""The path of a problem that is not one key's."""


def sentences(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One sentence for each problem of `error`, which validating against `root` raised."""
    return [
        f"{path_text(_without_tags(details['loc'], root))}: {_complaint(details, _model_at(root, details['loc'][:-1]))}"
        for details in error.errors(include_url=False)
    ]


def path_text(location: Sequence[int | str]) -> str:
    """`models[0].speculative_config.model` of ("models", 0, "speculative_config", "model")."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".") or WHOLE


def value_text(value: object) -> str:
    """`value` in ASCII, shortened: it goes into messages and HTTP bodies."""
    text = ascii(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 3] + "..."


def unknown_keys(data: object, model: type[BaseModel], path: tuple[int | str, ...] = ()) -> Iterator[str]:
    """A sentence for every key of `data` that `model`, or a model nested in it, does not have.

    For models that ignore extra keys; those that forbid them report by themselves.
    """
    allowed = _keys(model)
    for key, value in (mapping_or_none(data) or {}).items():
        here = (*path, str(key))
        if key not in allowed:
            yield f"{path_text(here)}: unknown key; allowed: {', '.join(allowed)}"
            continue
        nested = _nested_model(allowed[key])
        if nested is None:
            continue
        yield from unknown_keys(value, nested, here)
        for index, item in enumerate(list_or_none(value) or []):
            yield from unknown_keys(item, nested, (*here, index))


def _complaint(details: ErrorDetails, model: type[BaseModel] | None) -> str:
    kind, message = details["type"], details["msg"]
    if kind == "extra_forbidden":
        return "unknown key" if model is None else f"unknown key; allowed: {', '.join(_keys(model))}"
    if kind == "missing":
        return "required, but absent"
    if kind == "value_error":
        return str(details.get("ctx", {}).get("error", message))
    return f"got {value_text(details['input'])}; {message.replace('Input should', 'it should')}"


def _keys(model: type[BaseModel]) -> dict[str, Any]:
    """Annotation of each key, under its alias where it has one."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _model_at(root: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    annotation: Any = root
    for part in location:
        if isinstance(part, str):
            annotation = _step(annotation, part)[0]
    return _nested_model(annotation)


def _without_tags(location: Sequence[int | str], root: type[BaseModel]) -> list[int | str]:
    """`location` as the data has it: pydantic adds the tag of a union's member."""
    annotation: Any = root
    found: list[int | str] = []
    for part in location:
        is_tag = False
        if isinstance(part, str):
            annotation, is_tag = _step(annotation, part)
        if not is_tag:
            found.append(part)
    return found


def _step(annotation: Any, part: str) -> tuple[Any, bool]:
    """The annotation of `part` of `annotation`, and whether it is a tag of a union rather than a key."""
    tagged = _tagged_members(annotation)
    if part in tagged:
        return tagged[part], True
    model = _nested_model(annotation)
    return None if model is None else _keys(model).get(part), False


def _tagged_members(annotation: Any) -> dict[str, Any]:
    """Members of the tagged union that `annotation` is, or is a list of."""
    found: dict[str, Any] = {}
    for member in get_args(annotation):
        for tag in get_args(member)[1:] if get_origin(member) is Annotated else ():
            if isinstance(tag, Tag):
                found[tag.tag] = member
        if get_origin(member) is not None and not found:
            found = _tagged_members(member)
    return found


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    """The model that `annotation` is, or is optional of, or is a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, list, tuple, Annotated):
        return next((model for part in get_args(annotation) if (model := _nested_model(part))), None)
    return None
