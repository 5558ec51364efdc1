"""Whether the leaves of a certificate hold: each is bounded again, and one without a bound must
contain no input, by integers alone."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ithbit.display import lower_text
from ithbit.theory.certificate_file import CertificateError
from ithbit.theory.layers import FloatArray
from ithbit.verification.checks.interface import LeafCheck, confirm_leaf
from ithbit.verification.proofs.coverage import Work, in_steps, is_empty
from ithbit.verification.proofs.interface import Ints, Leaves, MarginBounds

OneByOne = Callable[[Sequence[int]], Iterable[int]]  # the same numbers, with progress shown


def text_of(bits: Ints) -> str:
    """A string with * for a free bit."""
    return "".join("*" if bit < 0 else str(bit) for bit in bits.tolist())


def need_empty(leaves: Leaves, functionals: FloatArray) -> None:
    """Raise `CertificateError` unless every leaf without a bound contains no input."""
    C, work = in_steps(functionals), Work()
    for k in np.flatnonzero(~np.isfinite(leaves.lower)):
        if not is_empty(C, leaves.bits[k], in_steps(leaves.limits[k]), work):
            raise CertificateError(
                f"a leaf of index {leaves.index[k] + 1} has no bound, but may contain inputs: "
                f"{text_of(leaves.bits[k])}"
            )


def _order(leaves: Leaves) -> list[int]:
    """The leaves that have a bound, those of few free bits first: the search needed small sets
    there, perhaps so small that it tried their inputs, and the check may fail on them."""
    held = np.flatnonzero(np.isfinite(leaves.lower))
    order: list[int] = held[np.argsort((leaves.bits[held] < 0).sum(1), kind="stable")].tolist()
    return order


def recheck_leaves(check: LeafCheck, leaves: Leaves, one_by_one: OneByOne = iter) -> None:
    """Raise `CertificateError` unless the second implementation confirms every leaf that has a
    bound. It does not know limits: it bounds all strings of a leaf's bits, which are more."""
    for k in one_by_one(_order(leaves)):
        i, bits, bound = int(leaves.index[k]), leaves.bits[k], float(leaves.lower[k])
        if not confirm_leaf(check, i, bits.tolist(), bound) >= bound:
            raise CertificateError(
                f"a leaf of index {i + 1} is stated to have a margin of at least "
                f"{lower_text(bound)}, but the weights give less at {text_of(bits)}"
            )


def checked_leaves(
    check: LeafCheck, leaves: Leaves, close: float, one_by_one: OneByOne = iter
) -> Leaves | None:
    """The leaves with bounds that the search and the second implementation both reach; None if it
    does not confirm one of them."""
    lower = leaves.lower.copy()
    goal = close * float(lower.min()) * (1 - 1e-4)  # as if stated to five digits
    for k in one_by_one(_order(leaves)):
        least = confirm_leaf(check, int(leaves.index[k]), leaves.bits[k].tolist(), goal)
        if not least > 0:
            return None
        lower[k] = min(lower[k], least)
    return Leaves(leaves.index, leaves.bits, leaves.limits, lower)


def need_bounds(bounds: MarginBounds, leaves: Leaves, one_by_one: OneByOne = iter) -> None:
    """Raise `CertificateError` unless the margin is at least as stated over every leaf. An infinite
    bound is good for a leaf that contains no input, by integers."""
    C = in_steps(bounds.functionals)
    for start in one_by_one(range(0, len(leaves), bounds.batch)):
        own = leaves[start : start + bounds.batch]
        found = bounds(own.index, own.bits, own.limits)
        lower = np.where(found.lower > found.upper, np.inf, found.lower)  # inverted: no bound
        held = (lower >= own.lower) & np.isfinite(lower)
        for k in np.flatnonzero(~held):
            if lower[k] == np.inf and is_empty(C, own.bits[k], in_steps(own.limits[k])):
                continue
            raise CertificateError(
                f"a leaf of index {own.index[k] + 1} is stated to have a margin of at least "
                f"{lower_text(own.lower[k])}, but the weights give {lower_text(found.lower[k])}"
            )
