"""Whether leaves cover all strings, and whether a leaf contains none: exact, in integers.

Functionals and limits are whole steps here (`bands.py`), so that every functional of a string is an
integer. A leaf contains a set of strings if its fixed bits are fixed so in the set, and its limits
contain the set's. Limits count as boxes, whatever strings they contain: what is called covered is
covered; a cover that only shows when strings are counted is not seen.

Whether leaves cover everything is hard to decide in general, but easy for the leaves of a search,
which are cut out of each other. So the work is limited, and leaves that need more are refused.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ithbit.theory.certificate_file import CertificateError
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.bands import STEP
from ithbit.verification.proofs.interface import Ints, Leaves

MOST_LEAVES = 1 << 19
MOST_FUNCTIONALS = 16
_MOST_WORK = 1 << 27  # leaves looked at; about two minutes
_NODE = 64  # what a split costs besides, in leaves
_FEW = 14  # free bits up to which all strings of a leaf are tried
_STRINGS = 1024  # numbers of strings that cost as much as a leaf

Steps = NDArray[np.int64]


@dataclass
class Work:
    """What may still be done; raises `CertificateError` when nothing is left."""

    left: int = _MOST_WORK

    def spend(self, leaves: int) -> None:
        self.left -= _NODE + leaves
        if self.left < 0:
            raise CertificateError(
                "it takes too long to see whether its leaves cover all inputs, or contain any; the "
                "leaves of a search are cut out of each other, and these are not"
            )


def in_steps(values: FloatArray) -> Steps:
    """Multiples of the step as integers; raises `CertificateError` if some are none."""
    steps = np.asarray(values, np.float64) / STEP  # exact: the step is a power of 2
    if not (np.abs(steps) < 1 << 52).all() or (steps != np.rint(steps)).any():
        raise CertificateError("limits and functionals must be whole steps")
    return steps.astype(np.int64)


def hole(leaves: Leaves, functionals: FloatArray) -> tuple[int, Ints] | None:
    """Inputs that no leaf covers: an index from 0 and a string with -1 for a free bit; or None.

    Raises `CertificateError` for limits beyond what any string reaches, or for too much work.
    """
    C, limits, n = in_steps(functionals), in_steps(leaves.limits), leaves.bits.shape[1]
    most = np.abs(C).sum(1)
    whole = np.stack([-most, most], -1)
    low, high = limits[..., 0], limits[..., 1]
    if ((low < whole[:, 0]) | (high > whole[:, 1]) | (low > high)).any():
        raise CertificateError("a leaf has limits that are empty or beyond what strings reach")
    work = Work()
    order = np.argsort(leaves.index, kind="stable")
    ends = np.searchsorted(leaves.index[order], np.arange(n + 1))
    for i in range(n):
        own = order[ends[i] : ends[i + 1]]
        for value in (0, 1):
            case = own[leaves.bits[own, i] == value]
            found = uncovered(leaves.bits[case], limits[case], i, value, whole, work)
            if found is not None:
                return i, found
    return None


def uncovered(
    bits: Ints, limits: Steps, index: int, value: int, whole: Steps, work: Work | None = None
) -> Ints | None:
    """Inputs of a case that no leaf covers, as a string with -1 for a free bit; None if none.

    Limits (leaf, functional, 2) and those of all strings (functional, 2) include both ends. The
    case is split where the fewest leaves are split with it: at a bit, or at an end of limits.

    >>> leaves, whole = np.array([[1, 0, -1], [1, 1, 0]]), np.zeros((0, 2), int)
    >>> uncovered(leaves, np.zeros((2, 0, 2), int), 0, 1, whole).tolist()
    [1, 1, 1]
    """
    work = work or Work()
    start = np.full(bits.shape[1], -1, np.int8)
    start[index] = value
    meets = (limits[..., 0] <= whole[:, 1]) & (whole[:, 0] <= limits[..., 1])
    meets = meets.all(1) & (bits[:, index] != 1 - value)
    todo = [(start, whole, np.flatnonzero(meets))]
    while todo:
        node, box, near = todo.pop()  # a set, and the leaves that contain some of it
        work.spend(len(near) * (1 + len(box)))
        if not len(near):
            return node
        fixed = (bits[near] >= 0) & (node < 0)
        low, high = limits[near, :, 0], limits[near, :, 1]
        within = (low <= box[:, 0]) & (box[:, 1] <= high)
        if (~fixed.any(1) & within.all(1)).any():
            continue  # a leaf contains all of it
        cuts = [(int((~fixed[:, j]).sum()), int(j), 0) for j in np.flatnonzero(fixed.any(0))]
        for f in range(len(box)):
            # Cut at c, up to c - 1 and from c: those are split that begin before c, but do not end.
            begin, end = np.sort(low[:, f]), np.sort(high[:, f])
            at = np.unique(np.concatenate([begin, end + 1]))
            at = at[(box[f, 0] < at) & (at <= box[f, 1])]
            if len(at):
                split = np.searchsorted(begin, at) - np.searchsorted(end, at)
                k = int(split.argmin())
                cuts.append((int(split[k]), len(node) + f, int(at[k])))
        _, j, c = min(cuts)
        for side in (0, 1):
            child, part = node.copy(), box.copy()
            if j < len(node):
                child[j] = side
                own = bits[near, j] != 1 - side
            else:
                f = j - len(node)
                part[f, 1 - side] = c if side else c - 1
                own = high[:, f] >= c if side else low[:, f] < c
            todo.append((child, part, near[own]))
    return None


def is_empty(functionals: Steps, bits: Ints, limits: Steps, work: Work | None = None) -> bool:
    """Whether it is certain that no string with these bits (-1 for a free one) has its functionals
    within the limits (functional, 2), both ends included.

    >>> rows, free = np.array([[3, 3]]), np.array([-1, -1])
    >>> [is_empty(rows, free, np.array([ends])) for ends in ([1, 5], [0, 5])]
    [True, False]
    """
    free = np.flatnonzero(bits < 0)
    fixed = functionals @ np.where(bits < 0, 0, 2 * bits.astype(np.int64) - 1)
    C = functionals[:, free]
    reach = np.abs(C).sum(1)
    low, high = np.maximum(limits[:, 0] - fixed, -reach), np.minimum(limits[:, 1] - fixed, reach)
    if (low > high).any():
        return True
    if len(free) <= _FEW:
        (work or Work()).spend((C.size + _NODE << len(free)) // _STRINGS)
        signs = 2 * (np.arange(1 << len(free))[:, None] >> np.arange(len(free)) & 1) - 1
        at = signs @ C.T
        return not bool(((low <= at) & (at <= high)).all(1).any())
    # Any combination of the functionals: here, towards a corner that no string may reach.
    ends = zip(low.tolist(), high.tolist(), reach.tolist(), strict=True)
    a = [((x + y) << 20) // max(r, 1) for x, y, r in ends]
    least = sum(min(k * int(x), k * int(y)) for k, x, y in zip(a, low, high, strict=True))
    most = sum(abs(sum(k * int(c) for k, c in zip(a, column, strict=True))) for column in C.T)
    return least > most
