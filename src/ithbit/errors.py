"""The mistakes a user can make, each with one sentence: given, allowed, what to do.

The command line prints that sentence without a traceback and exits with status 2.
"""

from collections.abc import Sequence
from dataclasses import fields
from numbers import Real
from operator import index
from typing import Any


class IthbitError(Exception):
    """A mistake of the user's, or a state of the machine that the user can fix.

    >>> import ithbit
    >>> try:
    ...     ithbit.train("rhi", "gru", n=0)
    ... except ithbit.IthbitError as error:
    ...     print(error)
    model: n must be at least 1, got 0
    """


class SpecError(IthbitError):
    """A specification that cannot be built; names every problem at once."""


class StoreError(IthbitError):
    """A run folder, record or checkpoint that cannot be used as it stands."""


class BusyError(StoreError):
    """A run that another process is training right now."""


class DeviceError(IthbitError):
    """A device that was asked for and is not there, or that failed."""


class TooLargeError(IthbitError):
    """What does not fit the memory that is there, or takes longer than anybody waits."""


class ClusterError(IthbitError):
    """A cluster that is not there, does not answer or refuses what it is asked."""


class LayerError(IthbitError):
    """A user's layer that cannot be loaded, built or probed."""


class OutputError(IthbitError):
    """A file that was asked for and cannot be written."""


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


def first_of(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are.

    >>> first_of(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def whole(name: str, value: Any) -> int:
    """The value as a plain whole number, numpy's included; a sentence if it is none.

    >>> whole("n_bits", "4")
    Traceback (most recent call last):
    ...
    ithbit.errors.SpecError: n_bits must be a whole number, got '4'
    """
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise SpecError(f"{name} must be a whole number, got {value!r}")


def _number(name: str, value: Any) -> float:
    if not isinstance(value, bool):
        if isinstance(value, int | float):
            return value
        if isinstance(value, Real):
            return float(value)
    raise SpecError(f"{name} must be a number, got {value!r}")


def check_numbers(subject: str, spec: Any) -> None:
    """Raise one `SpecError` for all fields of a frozen spec that should be numbers and are not.

    Numpy's numbers become plain ones, which records hold. A whole number may stand for a float, and
    stays as it is: the id of a run tells 5 from 5.0.
    """
    problems = []
    for field in fields(spec):
        if field.type in (int, float):
            read = whole if field.type is int else _number
            try:
                object.__setattr__(spec, field.name, read(field.name, getattr(spec, field.name)))
            except SpecError as error:
                problems.append(str(error))
    raise_problems(subject, problems)
