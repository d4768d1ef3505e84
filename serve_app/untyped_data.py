"""Data out of YAML and JSON, before a model has checked it."""

from typing import Any, cast


def mapping_or_none(value: object) -> dict[str, Any] | None:
    """`value` if it is a mapping."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def list_or_none(value: object) -> list[Any] | None:
    """`value` if it is a list."""
    return cast("list[Any]", value) if isinstance(value, list) else None
