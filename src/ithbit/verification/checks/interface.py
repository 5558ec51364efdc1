"""The interface of a second implementation: lower bounds of a model's margin on leaves.

A leaf is an index from 0 and bits of 0, 1 and -1 for a free one; the bit at the index is fixed and
is the answer. A check imports nothing of the search. What is confirmed rests on `confirm_leaf`, so
it is here: it accepts a leaf if the bound is high enough on all of it, or on both of its halves.
"""

import math
from typing import Any, Protocol

CUTS = 5  # bits fixed at most in a leaf whose bound is too low at first

Bound = Any  # a float, or a flint.arb, which has no type stubs


class LeafCheck(Protocol):
    """A second implementation for one trained model."""

    def lower(self, index: int, bits: list[int]) -> Bound:
        """A proved lower bound of the margin on a leaf; one that is not finite bounds nothing."""

    def branch(self, index: int, bits: list[int]) -> int | None:
        """The free bit to fix next where the bound is too low; None if nothing would help."""

    def is_wrong(self, index: int, bits: list[int]) -> bool:
        """Whether the margin is certainly at most 0 on all strings of a leaf."""


def rounded_down(bound: Bound) -> float:
    """A bound as a float that is no larger; -inf if it bounds nothing.

    >>> rounded_down(1.5), rounded_down(float("inf"))
    (1.5, -inf)
    """
    if isinstance(bound, float):
        return bound if math.isfinite(bound) else -math.inf
    if not bound.is_finite():
        return -math.inf
    low = math.nextafter(float(bound.lower()), -math.inf)
    return low if math.isfinite(low) else -math.inf


def confirm_leaf(
    check: LeafCheck, index: int, bits: list[int], goal: float, cuts: int = CUTS
) -> float:
    """A lower bound of the margin on a leaf. Where that is below the goal, the leaf is cut: the
    search may have had a better bound, and the leaf may be right."""
    low = rounded_down(check.lower(index, bits))
    if low >= goal or not cuts:
        return low
    at = check.branch(index, bits)
    if at is None or bits[at] >= 0:
        return low
    least = math.inf
    for bit in (0, 1):
        half = [*bits[:at], bit, *bits[at + 1 :]]
        least = min(least, confirm_leaf(check, index, half, goal, cuts - 1))
        if not least > max(low, min(goal, 0.0)):  # it will not be confirmed
            return low
    return least


class CachedLeafCheck:
    """A check that bounds every leaf once: a certificate is made with these bounds, and its bytes
    are confirmed with them."""

    def __init__(self, check: LeafCheck) -> None:
        self.check = check
        self.known: dict[tuple[int, bytes], float] = {}

    def lower(self, index: int, bits: list[int]) -> float:
        leaf = index, bytes(bit + 1 for bit in bits)
        if leaf not in self.known:
            self.known[leaf] = rounded_down(self.check.lower(index, bits))
        return self.known[leaf]

    def branch(self, index: int, bits: list[int]) -> int | None:
        return self.check.branch(index, bits)

    def is_wrong(self, index: int, bits: list[int]) -> bool:
        return self.check.is_wrong(index, bits)
