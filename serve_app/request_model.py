"""What every request body is checked by: no unknown keys, no types that only nearly fit, no option that is ignored."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from replicas.errors import RequestError
from serve_app.untyped_data import mapping_or_none
from serve_app.validation_sentences import value_text


def _describe_unsupported(schema: dict[str, Any], kind: type[BaseModel]) -> None:
    unsupported: Mapping[str, Sequence[object]] = getattr(kind, "unsupported", {})
    for name, neutral in unsupported.items():
        schema["properties"][name] = {"enum": [*neutral, None], "description": "Not supported: these ask for nothing."}


class RequestBody(BaseModel):
    """Of every route: unknown keys and types that only nearly fit are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, json_schema_extra=_describe_unsupported
    )

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Options that cannot be honoured, with the values that ask for nothing; null is always one."""


def without_neutral(data: Any, unsupported: Mapping[str, Sequence[object]]) -> Any:
    """`data` without its unsupported options. Raises RequestError for the first that asks for something."""
    body = mapping_or_none(data)
    if body is None:
        return data
    for name, neutral in unsupported.items():
        value = body.get(name)
        if value is not None and not any(_same(value, allowed) for allowed in neutral):
            raise RequestError(f"{name} is not supported: got {value_text(value)}", name, "unsupported_parameter")
    return {key: value for key, value in body.items() if key not in unsupported}


def _same(value: object, neutral: object) -> bool:
    """Equal, where 0 is 0.0 but not false."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
