"""Branch and bound over the bits of every case: worst first, in batches, until the time is up.

A *case* is an index and the value of its bit; a *node* is a case with some further bits fixed. The
nodes kept cover all inputs at any time, so the search may end whenever it likes: the least of their
bounds is proved. Nothing here is trusted: a certificate is checked without this module.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ithbit.prove.bounded import Bounds, Ints
from ithbit.theory.layers import FloatArray

_SPOKEN = 0.2  # seconds between two words of progress


@dataclass(frozen=True, eq=False)
class Nodes:
    """Cases with some bits fixed, and what is proved of them."""

    index: Ints
    bits: Ints
    lower: FloatArray
    branch: Ints  # the bit to fix next

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, at: Ints) -> "Nodes":
        return Nodes(self.index[at], self.bits[at], self.lower[at], self.branch[at])

    @property
    def share(self) -> FloatArray:
        """Of all inputs, node by node."""
        n = self.bits.shape[1]
        return np.exp2(-(self.bits >= 0).sum(1, dtype=float)) / n


@dataclass(frozen=True, eq=False)
class Found:
    """What a search has: leaves that cover all inputs, and the input of least margin it met."""

    leaves: Nodes
    least_proved: float
    least_found: float
    bits: str  # of the input of that margin, "" if it was told
    index: int  # from 1
    share_closed: float  # of all inputs: where the bounds are above 0
    nodes: int
    seconds: float

    def sentence(self) -> str:
        """How far it is, in words."""
        low = "none" if self.least_proved <= 0 else f"{self.least_proved:.4g}"
        return f"{self.share_closed:.2%} closed, least margin proved {low}, {self.nodes:,} nodes"

    @property
    def outcome(self) -> Literal["proved", "refuted", "open"]:
        if self.least_found <= 0:
            return "refuted"
        return "proved" if self.least_proved > 0 else "open"


def cases(n: int) -> tuple[Ints, Ints]:
    """Index and bits of the 2 n cases, all other bits free."""
    index = np.repeat(np.arange(n), 2)
    bits = np.full((2 * n, n), -1, np.int8)
    bits[np.arange(2 * n), index] = np.tile([0, 1], n)
    return index, bits


def search(
    bounds: Bounds,
    seconds: float = 60.0,
    least: float = math.inf,
    watch: Callable[[Found], None] | None = None,
    slack: float | None = None,
) -> Found:
    """Bound the margin over all inputs from below until that is within `slack` of the least one
    met (what the bounds have unless given), an input is wrong, or the time is up. `least` is a
    margin that is known to occur."""
    slack = bounds.slack if slack is None else slack
    started = spoken = time.perf_counter()
    count, worst = 0, ("", 0)
    leaves: Nodes | None = None
    index, bits = cases(bounds.n)
    while True:
        fresh, margin, at = _bounded(bounds, index, bits)
        count += len(fresh)
        if margin < least:
            least, worst = margin, at
        leaves = fresh if leaves is None else _joined(leaves, fresh)
        goal = least - slack if least > 2 * slack else least / 100
        todo = np.flatnonzero((leaves.lower < goal) & (leaves.branch >= 0))
        now = time.perf_counter()
        over = not len(todo) or least <= 0 or now - started > seconds
        if over or (watch is not None and now - spoken > _SPOKEN):
            closed = float(leaves.share[leaves.lower > 0].sum())
            low = float(leaves.lower.min())
            found = Found(leaves, low, least, *worst, closed, count, now - started)
            if over:
                return found
            assert watch is not None
            watch(found)
            spoken = now
        split = todo[np.argsort(leaves.lower[todo], kind="stable")[: bounds.batch]]
        index, bits = _children(leaves[split])
        leaves = leaves[np.setdiff1d(np.arange(len(leaves)), split, assume_unique=True)]


def _bounded(bounds: Bounds, index: Ints, bits: Ints) -> tuple[Nodes, float, tuple[str, int]]:
    """The nodes with their bounds; the least margin of the inputs that their forms point at."""
    starts = range(0, len(index), bounds.batch)
    found = [bounds(index[k : k + bounds.batch], bits[k : k + bounds.batch]) for k in starts]
    lower, slope, weight = (
        np.concatenate([getattr(each, name) for each in found])
        for name in ("lower", "slope", "weight")
    )
    free = bits < 0
    branch = np.where(free.any(1), np.where(free, weight, -1.0).argmax(1), -1)
    worst = np.argsort(lower, kind="stable")[: bounds.batch]
    corner = np.where(free, slope < 0, bits).astype(np.int8)[worst]
    margin = bounds(index[worst], corner).upper
    least = int(margin.argmin())
    text = "".join(map(str, corner[least]))
    at = int(index[worst[least]]) + 1
    return Nodes(index, bits, lower, branch), float(margin[least]), (text, at)


def _children(nodes: Nodes) -> tuple[Ints, Ints]:
    """Each node twice, with its branching bit 0 and 1."""
    row, both = np.arange(len(nodes)), []
    for value in (0, 1):
        bits = nodes.bits.copy()
        bits[row, nodes.branch] = value
        both.append(bits)
    return np.concatenate([nodes.index, nodes.index]), np.concatenate(both)


def _joined(a: Nodes, b: Nodes) -> Nodes:
    parts = ("index", "bits", "lower", "branch")
    return Nodes(*(np.concatenate([getattr(a, name), getattr(b, name)]) for name in parts))
