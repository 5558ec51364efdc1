"""Errors that a user can fix, each with a one-sentence message: given, allowed, what to do.

The command line prints that sentence without a traceback and exits with the error's status, 2 for
all but a certificate that does not hold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from numbers import Real
from operator import index
from typing import Any, ClassVar, TypeVar

Choice = TypeVar("Choice", bound=str)


class IthbitError(Exception):
    """A user's mistake, or a state of the machine that the user can fix.

    >>> import ithbit
    >>> try:
    ...     ithbit.train("rhi", "gru", n=0)
    ... except ithbit.IthbitError as error:
    ...     print(error)
    model: n must be at least 1, got 0
    """

    exit_status: ClassVar[int] = 2  # of the command line


class SpecError(IthbitError):
    """An invalid specification; the message lists all problems at once."""


class StoreError(IthbitError):
    """A run folder, record or checkpoint that cannot be used as it stands."""


class BusyError(StoreError):
    """A run that another process is training right now."""


class DeviceError(IthbitError):
    """A requested device that is missing or that failed."""


class TooLargeError(IthbitError):
    """Work that exceeds the available memory or would take too long to be practical."""


class ClusterError(IthbitError):
    """A cluster that is missing, does not answer or rejects a request."""


class LayerError(IthbitError):
    """A user's layer that cannot be loaded, built or probed."""


class OutputError(IthbitError):
    """A requested output file that cannot be written."""


def raise_problems(subject: str, problems: list[str]) -> None:
    """Raise one `SpecError` that lists all problems of `subject`; do nothing if there are none.

    >>> raise_problems("ModelSpec", [])
    >>> raise_problems("ModelSpec", ["n must be at least 1, got 0", "heads must be ..."])
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: ModelSpec: n must be at least 1, got 0; heads must be ...
    """
    if problems:
        raise SpecError(f"{subject}: {'; '.join(problems)}")


def one_of(
    problem: str, value: object, choices: Iterable[Choice], error: type[IthbitError] = SpecError
) -> Choice:
    """The choice that is given; raise an error if there is no such choice.

    >>> one_of("unknown task", "rhu", ("rhi", "lhi"))
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: unknown task 'rhu'; choose one of rhi, lhi
    """
    options = list(choices)
    if value in options:
        return options[options.index(value)]
    raise error(f"{problem} {value!r}; choose one of {', '.join(options)}")


def first_of(names: Sequence[str], most: int) -> str:
    """The first `most` names, and how many more there are.

    >>> first_of(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


_TOO_LONG = 10**1000  # a fourth of the digits that Python writes by default


def as_int(name: str, value: Any) -> int:
    """The value, numpy integers included, as an `int`; raise `SpecError` if it is not whole.

    >>> as_int("n", "4")
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: n must be a whole number, got '4'
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None:
        raise SpecError(f"{name} must be a whole number, got {value!r}")
    if abs(number) >= _TOO_LONG:
        raise SpecError(f"{name} must have at most 1,000 digits")
    return number


def number(name: str, value: Any) -> float:
    """The value as a plain number; raise `SpecError` if it is none."""
    if not isinstance(value, bool):
        if isinstance(value, int | float):
            return value
        if isinstance(value, Real):
            return float(value)
    raise SpecError(f"{name} must be a number, got {value!r}")


def normalize(record: Any, **values: Any) -> None:
    """Replace fields of a frozen dataclass; for its `__post_init__` alone.

    What a user gives (a numpy integer, a default that depends on another field) takes its one form
    there, before anyone has seen the record. A frozen dataclass sets its own fields in the same
    way, and the standard library offers no other.
    """
    for name, value in values.items():
        object.__setattr__(record, name, value)


def check_numbers(subject: str, spec: Any, called: dict[str, str] | None = None) -> None:
    """Raise one `SpecError` for all fields of a frozen spec that should be numbers, or True or
    False, and are not; `called` has the names that users know some fields by.

    Numpy numbers become plain ones, as records need. An int given for a float field stays an int:
    run ids distinguish 5 from 5.0.
    """
    problems = []
    for field in fields(spec):
        if field.type in (int, float):
            read = as_int if field.type is int else number
            try:
                label, value = (called or {}).get(field.name, field.name), getattr(spec, field.name)
                normalize(spec, **{field.name: read(label, value)})
            except SpecError as error:
                problems.append(str(error))
        elif field.type is bool and not isinstance(value := getattr(spec, field.name), bool):
            problems.append(f"{field.name} must be True or False, got {value!r}")
    raise_problems(subject, problems)
