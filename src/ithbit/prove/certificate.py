"""The proof of a run as a file, and its check: this module knows nothing about the search.

The file holds the run's specification, the digest of its weights, and the leaves. A leaf is a set
of inputs: an index, a string with * for a free bit, a lower bound on the margin and, where needed,
limits on linear functionals of the bits, in whole steps (`bands.py`). The check reads the weights,
verifies that the leaves cover all n · 2^n inputs, and bounds the margin over every leaf again; a
leaf without a bound must contain no input.
For one layer it does so with separate code, in balls (`check.py`); for two layers it shares the
bounds of a leaf (`bounded.py`) with the search, and nothing else. It does not need torch.
Bounds are stated to five digits, rounded down, so that another order of summation confirms them.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from ithbit.errors import SpecError
from ithbit.prove.bands import STEP, everything
from ithbit.prove.bounded import ARITHMETIC, Bounds, Ints, Leaves, bounds_for, is_one, need_fit
from ithbit.prove.check import OneLayer
from ithbit.shown import lower_text
from ithbit.spec import RunSpec, run_from_json
from ithbit.store.writing import json_bytes, write_whole
from ithbit.theory.certificate import SPEAKS_OF
from ithbit.theory.certificate_file import CertificateError, digest
from ithbit.theory.layers import FloatArray

FORMAT = "ithbit proof 1"
_DIGITS = 5

Json = dict[str, Any]
OneByOne = Callable[[Sequence[int]], Iterable[int]]  # the same numbers, with progress shown


@dataclass(frozen=True)
class Confirmed:
    """A certificate that holds: the run, and what is proved about it on all inputs."""

    name: str
    inputs: int
    margin: float
    leaves: int

    def sentence(self) -> str:
        return (
            f"{self.name} is right on all {self.inputs:,} inputs, margin at least "
            f"{lower_text(self.margin)}, in {SPEAKS_OF} ({self.leaves:,} leaves)"
        )

    def to_json(self) -> Json:
        stands = {"arithmetic": ARITHMETIC, "speaks_of": SPEAKS_OF}
        return {"format": FORMAT} | asdict(self) | stands


def stated(bound: float) -> float:
    """A positive bound to five digits, rounded down; `CertificateError` if not finite and positive.

    >>> stated(12.345678), stated(0.00123456789)
    (12.345, 0.0012345)
    """
    if not 0 < bound < math.inf:
        raise CertificateError(f"a leaf with the bound {bound} proves nothing")
    step = 10.0 ** (math.floor(math.log10(bound)) - _DIGITS + 1)
    near = float(f"{math.floor(bound / step) * step:.{_DIGITS}g}")
    return near if near <= bound else float(f"{near - step:.{_DIGITS}g}")


def document(run: RunSpec, weights: bytes, leaves: Leaves, functionals: FloatArray) -> Json:
    """The content of the certificate; functionals (functional, bit) are what limits apply to."""
    whole = everything(functionals, 1)[0]
    rows: list[Any] = sorted(
        [
            [int(i) + 1, _text(row), None if bound == math.inf else stated(float(bound))]
            + ([[_steps(each) for each in limits]] if (limits != whole).any() else [])
            for i, row, limits, bound in zip(
                leaves.index, leaves.bits, leaves.limits, leaves.lower, strict=True
            )
        ],
        key=str,
    )
    margin = min(row[2] for row in rows if row[2] is not None)
    sha = hashlib.sha256(weights).hexdigest()
    content = _claims(run, margin) | {"spec": run.to_json(), "weights_sha256": sha, "leaves": rows}
    if len(functionals):
        content["functionals"] = [_steps(row) for row in functionals]
    return content | {"digest": digest(content)}


def _claims(run: RunSpec, margin: float) -> Json:
    """What a certificate states besides its weights and leaves."""
    n = run.model.n_bits
    return {
        "format": FORMAT,
        "name": run.name,
        "run_id": run.run_id,
        "n": n,
        "inputs": n << n,
        "margin": margin,
        "arithmetic": ARITHMETIC,
        "speaks_of": SPEAKS_OF,
    }


def _steps(values: FloatArray) -> list[int]:
    return [int(x) for x in values / STEP]


def _text(bits: Ints) -> str:
    """A string with * for a free bit."""
    return "".join("*" if bit < 0 else str(bit) for bit in bits.tolist())


def write(path: Path, content: Json) -> None:
    """Write the file atomically, one line per leaf."""
    rest = {name: value for name, value in content.items() if name != "leaves"}
    lines = ",\n".join("  " + json.dumps(leaf) for leaf in content["leaves"])
    text = json_bytes(rest).decode().rstrip().removesuffix("}").rstrip()
    write_whole(path, f'{text},\n "leaves": [\n{lines}\n ]\n}}\n'.encode())


def weights_of(weights: bytes) -> Mapping[str, FloatArray]:
    """Stored weights as arrays."""
    try:
        return {name: value.astype(np.float64) for name, value in load(weights).items()}
    except SafetensorError as error:
        raise CertificateError(f"the weights are damaged: {error}") from error


def check_proof(path: Path, content: Json, one_by_one: OneByOne = iter) -> Confirmed:
    """Confirm the proof in a file for the weights next to it; raises `CertificateError`."""
    try:
        weights = path.with_name("weights.safetensors").read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path} needs its weights next to it, as weights.safetensors: {error.strerror}"
        ) from error
    try:
        return confirmed(content, weights, one_by_one=one_by_one)
    except ZeroDivisionError as reason:  # sums of exponentials that underflowed
        said = "the weights are too large to be bounded"
        raise CertificateError(f"{path} is refused: {said}") from reason
    except (SpecError, CertificateError, ArithmeticError) as reason:
        raise CertificateError(f"{path} is refused: {reason}") from reason


def confirmed(
    content: Json, weights: bytes, same_bounds: bool = False, one_by_one: OneByOne = iter
) -> Confirmed:
    """The proof, if everything holds that the content states about these weights; else raises.

    One layer is checked by separate code (`check.py`), or with `same_bounds` by the bounds of the
    search, which are faster.
    """
    if content.get("weights_sha256") != hashlib.sha256(weights).hexdigest():
        raise CertificateError("it is for other weights: their digest is not the one stated")
    try:
        run = run_from_json(content["spec"])
    except (KeyError, TypeError, ValueError) as error:
        raise CertificateError(f"its specification cannot be read: {error}") from error
    n = run.model.n_bits
    leaves, functionals = read_leaves(content, n)
    whole = everything(functionals, 1)[0]
    for i, answer in itertools.product(range(n), (0, 1)):
        own = leaves[(leaves.index == i) & (leaves.bits[:, i] == answer)]
        hole = uncovered(own.bits, own.limits, i, answer, whole)
        if hole is not None:
            raise CertificateError(f"no leaf covers the inputs {_text(hole)} with index {i + 1}")
    claims = _claims(run, float(leaves.lower.min()))
    for key, value in claims.items():
        if content.get(key) != value:
            raise CertificateError(f"{key} is not what follows from weights and leaves: {value!r}")
    if content.get("digest") != digest(content):
        raise CertificateError("the digest does not fit the contents: the file was changed")
    params = weights_of(weights)
    need_fit(run.model, params)
    if is_one(run.model) and not same_bounds:
        if len(functionals):
            raise CertificateError("a proof of one layer has no functionals")
        need_held(OneLayer(run.model, params), leaves, one_by_one)
    else:
        need_bounds(bounds_for(run.model, params, functionals), leaves, one_by_one)
    return Confirmed(run.name, claims["inputs"], claims["margin"], len(leaves))


def read_leaves(content: Json, n: int) -> tuple[Leaves, FloatArray]:
    """The leaves of a certificate for n bits, and the functionals that their limits apply to."""
    rows = content.get("leaves")
    if not isinstance(rows, list) or not rows:
        raise CertificateError("it has no leaves")
    functionals = _functionals(content.get("functionals", []), n)
    whole = everything(functionals, 1)[0]
    index, bits, limits, lower = [], [], [], []
    for row in rows:
        try:
            i, text, low, *more = row
            good = type(i) is int and 1 <= i <= n and len(text) == n and set(text) <= set("01*")
            good = good and text[i - 1] != "*" and (low is None or 0 < float(low) < math.inf)
            own = np.array(more[0], float) * STEP if more else whole
            good = good and len(more) < 2 and own.shape == whole.shape
            good = good and bool((own[:, 0] < own[:, 1]).all())
        except (TypeError, ValueError):
            good = False
        if not good:
            raise CertificateError(f"{row!r:.80} is not a leaf of {n} bits with a bound above 0")
        index.append(i - 1)
        bits.append(["01*".index(each) for each in text])
        limits.append(own)
        lower.append(math.inf if low is None else float(low))
    codes = np.where(np.array(bits) == 2, -1, np.array(bits)).astype(np.int8)
    return Leaves(np.array(index), codes, np.array(limits), np.array(lower)), functionals


def _functionals(rows: Any, n: int) -> FloatArray:
    """Functionals in whole steps, with entries in [-1, 1], so that their sums are exact."""
    try:
        found = np.array(rows, float).reshape(len(rows), n) * STEP
        good = bool((np.abs(found) <= 1).all() and (found / STEP == np.rint(found / STEP)).all())
    except (TypeError, ValueError):
        good = False
    if not good:
        raise CertificateError(f"its functionals are not rows of {n} whole steps")
    return found


def uncovered(
    bits: Ints, limits: FloatArray, index: int, value: int, whole: FloatArray
) -> Ints | None:
    """Inputs of a case that no leaf covers, as a string with -1 for a free bit; None if none.

    Limits are treated as boxes, whatever strings they contain. The case is split where the fewest
    leaves are split with it: at a bit, or at an end of a leaf's limits.

    >>> leaves, whole = np.array([[1, 0, -1], [1, 1, 0]]), np.zeros((0, 2))
    >>> uncovered(leaves, np.zeros((2, 0, 2)), 0, 1, whole).tolist()
    [1, 1, 1]
    """
    start = np.full(bits.shape[1], -1, np.int8)
    start[index] = value
    todo = [(start, whole, np.arange(len(bits)))]
    while todo:
        node, box, near = todo.pop()  # a set, and the leaves that contain some of it
        if not len(near):
            return node
        fixed = (bits[near] >= 0) & (node < 0)
        ends = limits[near]
        inside = (ends > box[:, :1]) & (ends < box[:, 1:])
        if (~fixed.any(1) & ~inside.any((1, 2))).any():
            continue  # a leaf contains all of it
        cuts = [((~fixed[:, j]).sum(), j, 0.0) for j in np.flatnonzero(fixed.any(0))]
        for f in np.flatnonzero(inside.any((0, 2))):
            low, high = ends[:, f, 0], ends[:, f, 1]
            for at in np.unique(ends[:, f][inside[:, f]]):
                cuts.append((((low < at) & (at < high)).sum(), bits.shape[1] + f, at))
        _, j, at = min(cuts)
        for side in (0, 1):
            child, part = node.copy(), box.copy()
            if j < len(node):
                child[j] = side
                own = bits[near, j] != 1 - side
            else:
                part[j - len(node), 1 - side] = at
                low, high = ends[:, j - len(node), 0], ends[:, j - len(node), 1]
                own = high > at if side else low < at
            todo.append((child, part, near[own]))
    return None


def need_held(model: OneLayer, leaves: Leaves, one_by_one: OneByOne = iter) -> None:
    """Raise `CertificateError` unless the second implementation confirms every leaf."""
    for k in one_by_one(range(len(leaves))):
        i, bits, bound = int(leaves.index[k]), leaves.bits[k], leaves.lower[k]
        if not model.holds(i, bits.tolist(), bound):
            raise CertificateError(
                f"a leaf of index {i + 1} is stated to have a margin of at least "
                f"{lower_text(bound)}, but the weights give less at {_text(bits)}"
            )


def need_bounds(bounds: Bounds, leaves: Leaves, one_by_one: OneByOne = iter) -> None:
    """Raise `CertificateError` unless the margin is at least as stated over every leaf."""
    for start in one_by_one(range(0, len(leaves), bounds.batch)):
        own = leaves[start : start + bounds.batch]
        lower = bounds(own.index, own.bits, own.limits).lower
        wrong = np.flatnonzero(~(lower >= own.lower))
        if len(wrong):
            k = wrong[0]
            raise CertificateError(
                f"a leaf of index {own.index[k] + 1} is stated to have a margin of at least "
                f"{lower_text(own.lower[k])}, but the weights give {lower_text(lower[k])}"
            )
