"""Branch and bound over the bits of every case: worst first, in batches, until the time is up.

A *case* is an index and the value of its bit; a *node* is a case with some further bits fixed, and
linear functionals of the bits within limits (`bands.py`). The nodes kept cover all inputs at any
time, so the search may stop at any point and another may continue from there: the least of their
bounds holds on all inputs, if the bounds are right. Nothing here is trusted: a certificate is
checked without this module. Of the file of an unfinished search only the sets are used, after a
check that they cover all inputs; their bounds and the least margin are computed again.
"""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ithbit.display import NO_BOUND, clock, lower_percent, lower_text
from ithbit.store.bounded_json import bounded_json
from ithbit.store.linked_files import open_regular
from ithbit.theory.certificate_file import CertificateError
from ithbit.theory.layers import FloatArray
from ithbit.verification.proofs.bands import STEP, everything, reached
from ithbit.verification.proofs.coverage import MOST_FUNCTIONALS, MOST_LEAVES, hole
from ithbit.verification.proofs.interface import Ints, Leaves, MarginBounds, NodeBounds

FORMAT = "ithbit search 1"
_SAMPLES = 256  # for each index
_SPOKEN = 0.2  # seconds between two reports of progress
_NEW = -2  # in place of the bit to fix next: not bounded yet
_NEAR = 0.9  # of the least margin met
_MOST_BYTES = 1 << 30  # of an unfinished search
# How a file of a search may fail to be read; numpy has no attribute for numbers of 8 bits.
_DAMAGED = (
    *(OSError, SafetensorError, KeyError, TypeError, ValueError, OverflowError),
    *(AttributeError, RecursionError),
)


@dataclass(frozen=True, eq=False)
class Nodes(Leaves):
    """Cases with some bits fixed, what is proved about them, and where to split them."""

    branch: Ints  # the bit to fix next, or n and more: the functional whose band to halve

    @property
    def share(self) -> FloatArray:
        """The share of all inputs that each node holds, ignoring its limits."""
        n = self.bits.shape[1]
        return np.exp2(-(self.bits >= 0).sum(1, dtype=float)) / n


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a search has found: leaves that cover all inputs, and the input of least margin met. By
    its own bounds: *proved* is its word for what a certificate is to be made of."""

    leaves: Nodes
    least_proved: float
    least_found: float
    bits: str  # of the input with that margin
    index: int  # from 1
    share_closed: float  # of all inputs: where the bounds are above 0
    nodes: int
    seconds: float
    seconds_left: float | None = None  # about, if it goes on like this; never more than it may take

    def sentence(self) -> str:
        """The progress, in words."""
        low = lower_text(self.least_proved, 4) if self.least_proved > 0 else NO_BOUND
        closed = lower_percent(self.share_closed)
        left = "" if self.seconds_left is None else f", about {clock(self.seconds_left)} left"
        return f"{closed} closed, least bound {low}, {self.nodes:,} nodes{left}"

    @property
    def outcome(self) -> Literal["proved", "refuted", "open"]:
        if self.least_found <= 0:
            return "refuted"
        # A bound above a margin that was met, or one that is NaN, is no bound.
        return "proved" if 0 < self.least_proved <= self.least_found else "open"


def cases(n: int) -> tuple[Ints, Ints]:
    """Index and bits of the 2 n cases, all other bits free."""
    index = np.repeat(np.arange(n), 2)
    bits = np.full((2 * n, n), -1, np.int8)
    bits[np.arange(2 * n), index] = np.tile([0, 1], n)
    return index, bits


def share_closed(leaves: Nodes, functionals: FloatArray) -> float:
    """The share of all inputs where the bounds are above 0; if there are functionals, an estimate
    from uniform inputs."""
    if not len(functionals):
        return float(leaves.share[leaves.lower > 0].sum())
    rng, n = np.random.default_rng(0), functionals.shape[1]
    held = leaves[np.flatnonzero(~(leaves.lower > 0))]
    missed = 0
    for i in range(n):
        own = held[np.flatnonzero(held.index == i)]
        strings = rng.integers(0, 2, (_SAMPLES, n), np.int8)
        at = (2.0 * strings - 1) @ functionals.T
        for k in range(0, len(own), 64):
            node = own[np.arange(k, min(k + 64, len(own)))]
            fits = ((node.bits < 0) | (node.bits == strings[:, None])).all(-1)
            low, high = node.limits[..., 0], node.limits[..., 1]
            fits &= ((low <= at[:, None]) & (at[:, None] <= high)).all(-1)
            away = ~fits.any(1)
            missed += int((~away).sum())
            strings, at = strings[away], at[away]
    return 1 - missed / (_SAMPLES * n)


def search(
    bounds: MarginBounds,
    seconds: float = 60.0,
    watch: Callable[[SearchResult], None] | None = None,
    start: SearchResult | None = None,
    keep: Callable[[SearchResult], None] | None = None,
    tighten: float = 0.0,
) -> SearchResult:
    """Bound the margin over all inputs from below until the bound is within the slack of `bounds`
    of the least margin met, an input is wrong, or the time is up. Where any bound above 0 is enough
    and is reached, at most a share `tighten` of the nodes so far is spent on coming within a tenth
    of the least margin met. Continues from the leaves of `start`, which are bounded again, and adds
    its nodes and seconds to the totals; if the user interrupts it, `keep` receives what was found
    so far."""
    slack, started = bounds.slack, time.perf_counter()
    spoken = started
    most: float = math.inf  # nodes, once all bounds are above 0
    if start is None:
        index, bits = cases(bounds.n)
        limits = everything(bounds.functionals, len(index))
        count, before = 0, 0.0
    else:
        held = start.leaves
        index, bits, limits, count, before = (
            *(held.index, held.bits, held.limits),
            *(start.nodes, start.seconds),
        )
    none = np.full(len(index), -math.inf)
    leaves = Nodes(index, bits, limits, none, np.full(len(index), _NEW))
    least, worst, begun = math.inf, ("", 0), False

    def result(now: float) -> SearchResult:
        closed, low = share_closed(leaves, bounds.functionals), float(leaves.lower.min())
        spent = now - started
        left = max(0.0, min(spent * (1 - closed) / closed if closed else seconds, seconds - spent))
        return SearchResult(leaves, low, least, *worst, closed, count, before + spent, left)

    try:
        while True:
            goal = least - slack if least > 2 * slack else least / 100
            now = time.perf_counter()
            new = np.flatnonzero(leaves.branch == _NEW)
            todo = np.flatnonzero((leaves.lower < goal) & (leaves.branch >= 0))
            if not (len(new) or len(todo)) and slack == math.inf:
                most = min(most, count * (1 + tighten))
                if count < most:
                    todo = np.flatnonzero((leaves.lower < _NEAR * least) & (leaves.branch >= 0))
            done = least <= 0 or (begun and now - started > seconds)
            if done or not (len(new) or len(todo)):
                return result(now)
            if watch is not None and now - spoken > _SPOKEN:
                watch(result(now))
                spoken = time.perf_counter()
            if len(new):
                split = new[: bounds.batch]
                sets = leaves.index[split], leaves.bits[split], leaves.limits[split]
                count = count + len(split) if start is None else count
            else:
                step = int(min(bounds.batch, max(1.0, (most - count) / 2)))
                split = todo[np.argsort(leaves.lower[todo], kind="stable")[:step]]
                sets = _children(bounds, leaves[split])
                count += len(sets[0])
            fresh, least, worst = _bounded(bounds, *sets, least, worst)
            begun = True
            rest = leaves[np.setdiff1d(np.arange(len(leaves)), split, assume_unique=True)]
            leaves = Nodes.joined([rest, fresh])
    except KeyboardInterrupt:
        if keep is not None:
            keep(result(time.perf_counter()))
        raise


def _bounded(
    bounds: MarginBounds,
    index: Ints,
    bits: Ints,
    limits: FloatArray,
    least: float,
    at: tuple[str, int],
) -> tuple[Nodes, float, tuple[str, int]]:
    """The nodes with their bounds; the least margin met so far, here or before, and where."""
    parts = [slice(k, k + bounds.batch) for k in range(0, len(index), bounds.batch)]
    found = NodeBounds.joined([bounds(index[part], bits[part], limits[part]) for part in parts])
    free = bits < 0
    # NaN or inverted is no bound; infinite is one only where no input is, which the check decides.
    wrong = np.isnan(found.lower) | np.isnan(found.upper)
    wrong |= np.isfinite(found.lower) & (found.lower > found.upper)
    lower = np.where(wrong, -np.inf, found.lower)
    wide = np.diff(reached(bounds.functionals, limits, bits), axis=-1)[..., 0] > 8 * STEP
    can = np.concatenate([free, wide], 1)
    weight = np.maximum(np.nan_to_num(found.weight, nan=0.0), 0.0)  # a hint, whatever it is
    branch = np.where(can.any(1), np.where(can, weight, -1.0).argmax(1), -1)
    worst = np.argsort(lower, kind="stable")[: bounds.batch]
    corner = np.where(free, found.slope < 0, bits).astype(np.int8)[worst]
    at_corner = bounds(index[worst], corner)
    sound = at_corner.lower <= at_corner.upper  # else, or with NaN, it is not known
    margin = np.where(sound, at_corner.upper, np.inf)
    k = int(margin.argmin())
    if margin[k] < least:
        least, at = float(margin[k]), ("".join(map(str, corner[k])), int(index[worst[k]]) + 1)
    return Nodes(index, bits, limits, lower, branch), least, at


def _children(bounds: MarginBounds, nodes: Nodes) -> tuple[Ints, Ints, FloatArray]:
    """Each node twice: with its branching bit 0 and 1, or the halves of a band."""
    n, both = bounds.n, []
    by_bit, by_band = np.flatnonzero(nodes.branch < n), np.flatnonzero(nodes.branch >= n)
    functional = nodes.branch[by_band] - n
    ends = reached(bounds.functionals, nodes.limits, nodes.bits)[by_band, functional]
    middle = np.rint(ends.mean(-1) / STEP) * STEP
    for value in (0, 1):
        bits, limits = nodes.bits.copy(), nodes.limits.copy()
        bits[by_bit, nodes.branch[by_bit]] = value
        limits[by_band, functional, 1 - value] = middle
        both.append((nodes.index, bits, limits))
    index, bits, limits = (np.concatenate(pair) for pair in zip(*both, strict=True))
    return index, bits, limits


def part_of(found: SearchResult, functionals: FloatArray, weights_sha256: str) -> bytes:
    """An unfinished search as a file, for the weights with that digest."""
    arrays = {name: np.ascontiguousarray(each) for name, each in vars(found.leaves).items()}
    numbers = {name: value for name, value in vars(found).items() if name != "leaves"}
    about = {"format": FORMAT, "weights_sha256": weights_sha256, "found": json.dumps(numbers)}
    return save(arrays | {"functionals": np.ascontiguousarray(functionals)}, about)


def read_part(path: Path, weights_sha256: str, n: int) -> tuple[SearchResult, FloatArray] | None:
    """The search of n bits in a file, and its functionals; None if it holds none for these weights.

    Only the leaves and the effort are taken. Raises `CertificateError` if they are damaged, or if
    the leaves do not cover all inputs.
    """
    if not path.exists():
        return None
    try:
        with open_regular(path) as opened:  # safetensors would wait for a FIFO
            if os.fstat(opened.fileno()).st_size > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        with safe_open(path, "numpy") as file:
            about = file.metadata() or {}
            if (about.get("format"), about.get("weights_sha256")) != (FORMAT, weights_sha256):
                return None
            names = ("index", "bits", "limits", "functionals")
            index, bits, limits, functionals = (file.get_tensor(name) for name in names)
        numbers = bounded_json(about["found"].encode())
        nodes, seconds = numbers["nodes"], float(numbers["seconds"])
    except _DAMAGED as error:
        raise CertificateError(f"it is damaged: {str(error)!r:.200}") from error
    kinds = [each.dtype.kind for each in (index, bits, limits, functionals)]
    shapes = (index.shape, bits.shape, limits.shape, functionals.shape)
    count, rows = len(index) if index.ndim == 1 else 0, len(functionals) if functionals.ndim else 0
    good = kinds == ["i", "i", "f", "f"] and 0 < count <= MOST_LEAVES and rows <= MOST_FUNCTIONALS
    good = good and shapes == ((count,), (count, n), (count, rows, 2), (rows, n))
    good = good and bool(((index >= 0) & (index < n)).all() and np.isin(bits, (-1, 0, 1)).all())
    good = good and bool((np.abs(functionals) <= 1).all()) and np.isfinite(limits).all()
    good = good and type(nodes) is int and 0 <= nodes < 1 << 62 and 0 <= seconds < 1e12
    if not good:
        raise CertificateError("its numbers are not those of a search")
    none, lower = np.full(count, -1), np.full(count, -np.inf)
    limits, functionals = limits.astype(np.float64), functionals.astype(np.float64)
    leaves = Nodes(index.astype(np.int64), bits.astype(np.int8), limits, lower, none)
    if (leaves.bits[np.arange(count), leaves.index] < 0).any():
        raise CertificateError("a set of inputs leaves the bit at its index free")
    if hole(leaves, functionals) is not None:
        raise CertificateError("its sets do not cover all inputs")
    return SearchResult(leaves, -math.inf, math.inf, "", 0, 0.0, nodes, seconds), functionals
