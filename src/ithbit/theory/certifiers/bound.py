"""The result of every argument: a lower bound on the margin, rounded down to a float."""

from dataclasses import dataclass

EXACT = "exact rationals"
BALLS = "exact rationals and arb balls"


class UnsuitableError(Exception):
    """The weights do not have the form that an argument needs; the message says which part."""


def need(condition: bool, what: str) -> None:
    """Raise `UnsuitableError` with this message unless the condition holds."""
    if not condition:
        raise UnsuitableError(what)


@dataclass(frozen=True)
class Bound:
    """A certified lower bound on the margin and the case (index, answer) where it is least."""

    margin: float
    index: int
    answer: int
    arithmetic: str
