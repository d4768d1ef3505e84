"""pydantic's errors as sentences: one a problem, with the path, the value and what is allowed."""

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from serve_app.untyped_data import list_or_none, mapping_or_none

MAX_VALUE_CHARACTERS = 80
WHOLE = "(the whole)"
"""The path of a problem that is not one key's."""


def sentences(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One sentence for each problem of `error`, which validating against `root` raised."""
    problems: list[str] = []
    for details in error.errors(include_url=False):
        path, model = _resolved(root, details["loc"])
        problems.append(f"{path_text(path)}: {_complaint(details, model)}")
    return problems


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


def _resolved(root: type[BaseModel], location: Sequence[int | str]) -> tuple[list[int | str], type[BaseModel] | None]:
    """The path without the tags that pydantic puts in for unions, and the model whose key its last part is."""
    path: list[int | str] = []
    here: Any = root
    model: type[BaseModel] | None = root
    for part in location:
        tagged = _tagged(here, part)
        if tagged is not None:
            here = tagged
            continue
        path.append(part)
        if isinstance(part, str):
            model = _nested_model(here)
            here = None if model is None else _keys(model).get(part)
    return path, model


def _tagged(annotation: Any, tag: int | str) -> type[BaseModel] | None:
    """The model of a union whose `policy` is `tag`."""
    for part in get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ():
        model = _nested_model(part)
        policy = model.model_fields.get("policy") if model else None
        if policy is not None and tag in get_args(policy.annotation):
            return model
    return None


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    """The model that `annotation` is, or is optional of, or is a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is Annotated:
        return _nested_model(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType, list, tuple):
        return next((model for part in get_args(annotation) if (model := _nested_model(part))), None)
    return None
