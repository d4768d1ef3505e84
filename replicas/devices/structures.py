"""The tensors inside of a program's inputs and outputs, which are frozen dataclasses, perhaps nested."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from torch import Tensor

Structure = TypeVar("Structure")


def tensors_of(structure: object) -> list[Tensor]:
    """All tensors of `structure`, in the order of its fields."""
    if isinstance(structure, Tensor):
        return [structure]
    if not is_dataclass(structure) or isinstance(structure, type):
        return []
    return [tensor for field in fields(structure) for tensor in tensors_of(getattr(structure, field.name))]


def with_tensors(structure: Structure, tensors: Iterator[Tensor]) -> Structure:
    """`structure` with its tensors, in the same order, taken from `tensors`; all else stays."""
    if isinstance(structure, Tensor):
        return cast(Structure, next(tensors))
    if not is_dataclass(structure) or isinstance(structure, type):
        return structure
    changed = {field.name: with_tensors(getattr(structure, field.name), tensors) for field in fields(structure)}
    return cast(Structure, replace(cast(Any, structure), **changed))
