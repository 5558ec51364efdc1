"""What a record must hold, derived from its dataclass.

Names, types, choices, ranges and what may be null come from the annotations; a field declared
`since_0_2` may be missing, as in records of 0.1, and then has its default.
"""

import math
import reprlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

MAX_INT = (1 << 63) - 1  # what a table's column holds
MAX_FLOAT = sys.float_info.max

R = TypeVar("R")


class UnreadableError(Exception):
    """The reason why a record is set aside."""


class ContradictionError(UnreadableError):
    """The record is complete but cannot be true."""


class CopyError(UnreadableError):
    """The folder is a copy of a run's folder under another name."""


@dataclass(frozen=True)
class Field:
    """What one field of a record may be."""

    kind: type
    may_be_null: bool
    choices: tuple[str, ...]  # none: any value of the kind
    range: tuple[float, float] | None  # of a number; metadata in its annotation
    default: Any  # MISSING: the field must be there

    @cached_property
    def nested(self) -> bool:
        """Whether it is a record itself, stored as a JSON object."""
        return is_dataclass(self.kind)

    @cached_property
    def types(self) -> tuple[type, ...]:
        """The types its value may have when read; an int counts as a float."""
        return (dict,) if self.nested else (float, int) if self.kind is float else (self.kind,)

    @cached_property
    def must_be(self) -> bool:
        return self.default is MISSING and not self.may_be_null


def must(kind: type, choices: tuple[str, ...] = ()) -> Field:
    """A required field with any value of its kind, or one of these."""
    return Field(kind, False, choices, None, MISSING)


@cache
def schema(record: Any) -> dict[str, Field]:
    """The fields of a dataclass by name, in order."""
    hints = get_type_hints(record, include_extras=True)
    return {item.name: _field(hints[item.name], item) for item in fields(record)}


def _field(hint: Any, item: Any) -> Field:
    default = item.default if "since" in item.metadata else MISSING
    choices, within = (), None
    may_be_null = NoneType in get_args(hint)
    if may_be_null:
        (hint,) = set(get_args(hint)) - {NoneType}
    if get_origin(hint) is Annotated:
        hint, within = get_args(hint)
    if get_origin(hint) is Literal:
        hint, choices = str, get_args(hint)
    return Field(get_origin(hint) or hint, may_be_null, choices, within, default)


def check(data: Mapping[str, Any], fields: Mapping[str, Field], where: str) -> None:
    """Raise `UnreadableError` unless all fields are present, with the right type and in range."""
    for name, field in fields.items():
        value = data.get(name)
        if value is None:
            if field.must_be:
                raise UnreadableError(f"{where} has no {name}")
        elif type(value) not in field.types or (field.choices and value not in field.choices):
            raise UnreadableError(f"{where} has {name} = {shortened(value)}")
        elif field.range and not field.range[0] <= value <= field.range[1]:  # nor is NaN within
            low, high = field.range
            within = f"from {low}" if high in (MAX_INT, MAX_FLOAT) else f"from {low} to {high}"
            raise ContradictionError(
                f"{where} has {name} = {shortened(value)}, which is not a number {within}"
            )
        elif type(value) is float and not math.isfinite(value):
            raise ContradictionError(f"{where} has {name} = {value}, which is not finite")
        elif field.nested:
            check(value, schema(field.kind), f"{where}: {name}")


def shortened(value: Any) -> str:
    """A value in a message: at most 40 characters, however deep it is."""
    return f"{reprlib.repr(value) if isinstance(value, dict | list) else repr(value):.40}"


def read_as(record: Callable[..., R], data: Mapping[str, Any], where: str) -> R:
    """The record in the data; raises `UnreadableError` if it is not valid."""
    check(data, schema(record), where)
    return built(record, data)


def built(record: Callable[..., R], data: Mapping[str, Any]) -> R:
    """The dataclass built from checked data; raises KeyError or TypeError on anything else."""
    values = {}
    for name, field in schema(record).items():
        value = data[name] if field.must_be else data.get(name)
        if value is None and field.default is not MISSING:
            value = field.default
        elif field.nested and isinstance(value, dict):
            value = built(field.kind, value)
        values[name] = value
    return record(**values)
