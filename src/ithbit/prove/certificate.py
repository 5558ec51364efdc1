"""The proof of a run as a file, and its check: this module knows nothing of the search.

The file holds the run's specification, the digest of its weights, and leaves: sets of inputs, each
an index and a string with * for a free bit, with a lower bound of the margin. The check reads the
weights, sees that the leaves cover all n · 2^n inputs, and bounds the margin over every leaf again.
It shares with the search the bounds of a leaf (`bounded.py`) and nothing else, and needs no torch.
Bounds are stated to five digits, rounded down, so that another order of summation confirms them.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from ithbit.errors import SpecError
from ithbit.prove.bounded import ARITHMETIC, Bounds, Ints, bounds_for
from ithbit.spec import ModelSpec, RunSpec, run_from_json
from ithbit.store.writing import json_bytes, write_whole
from ithbit.theory.certificate import SPEAKS_OF
from ithbit.theory.certificate_file import CertificateError, digest
from ithbit.theory.layers import FloatArray

FORMAT = "ithbit proof 1"
_DIGITS = 5

Json = dict[str, Any]


@dataclass(frozen=True)
class Confirmed:
    """A certificate that holds: the run, and what is proved of it on all inputs."""

    name: str
    spec: ModelSpec
    margin: float
    leaves: int

    def sentence(self) -> str:
        n = self.spec.n_bits
        return (
            f"{self.name} is right on all {n << n:,} inputs, margin at least {self.margin:.6g}, "
            f"in {SPEAKS_OF} ({self.leaves:,} leaves)"
        )

    def to_json(self) -> Json:
        n = self.spec.n_bits
        return {
            "format": FORMAT,
            "name": self.name,
            "inputs": n << n,
            "margin": self.margin,
            "leaves": self.leaves,
            "arithmetic": ARITHMETIC,
            "speaks_of": SPEAKS_OF,
        }


def stated(bound: float) -> float:
    """A positive bound to five digits, rounded down; anything else is no claim.

    >>> stated(12.345678), stated(0.00123456789)
    (12.345, 0.0012345)
    """
    if not 0 < bound < math.inf:
        raise CertificateError(f"a leaf with the bound {bound} proves nothing")
    step = 10.0 ** (math.floor(math.log10(bound)) - _DIGITS + 1)
    near = float(f"{math.floor(bound / step) * step:.{_DIGITS}g}")
    return near if near <= bound else float(f"{near - step:.{_DIGITS}g}")


def document(run: RunSpec, weights: bytes, index: Ints, bits: Ints, lower: FloatArray) -> Json:
    """The certificate: leaves as arrays, index from 0 and -1 for a free bit."""
    n = run.model.n_bits
    leaves = sorted(
        (int(i) + 1, _text(row), stated(float(bound)))
        for i, row, bound in zip(index, bits, lower, strict=True)
    )
    content = {
        "format": FORMAT,
        "name": run.name,
        "run_id": run.run_id,
        "spec": run.to_json(),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "n": n,
        "inputs": n << n,
        "margin": min(leaf[2] for leaf in leaves),
        "arithmetic": ARITHMETIC,
        "speaks_of": SPEAKS_OF,
        "leaves": [list(leaf) for leaf in leaves],
    }
    return content | {"digest": digest(content)}


def _text(bits: Ints) -> str:
    """A string with * for a free bit."""
    return "".join("*" if bit < 0 else str(bit) for bit in bits.tolist())


def write(path: Path, content: Json) -> None:
    """Put the file in place in one step, a line per leaf."""
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


def check_proof(path: Path, content: Json) -> Confirmed:
    """The proof that a file holds, of the weights beside it; raises `CertificateError`."""
    try:
        weights = path.with_name("weights.safetensors").read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{path} is of weights that must lie beside it as weights.safetensors: {error.strerror}"
        ) from error
    try:
        return confirmed(content, weights)
    except (SpecError, CertificateError) as reason:
        raise CertificateError(f"{path} is refused: {reason}") from reason


def confirmed(content: Json, weights: bytes) -> Confirmed:
    """The proof if all holds that the content states of these weights, else the reason raised."""
    if content.get("weights_sha256") != hashlib.sha256(weights).hexdigest():
        raise CertificateError("it is of other weights: their digest is not the one stated")
    try:
        run = run_from_json(content["spec"])
    except (KeyError, TypeError, ValueError) as error:
        raise CertificateError(f"its specification cannot be read: {error}") from error
    n = run.model.n_bits
    index, bits, bound = _leaves(content.get("leaves"), n)
    for i, answer in itertools.product(range(n), (0, 1)):
        own = bits[(index == i) & (bits[:, i] == answer)]
        if (hole := uncovered(own, i, answer, n)) is not None:
            raise CertificateError(f"no leaf covers the inputs {_text(hole)} with index {i + 1}")
    need_bounds(bounds_for(run.model, weights_of(weights)), index, bits, bound)
    claims: Json = {
        "format": FORMAT,
        "name": run.name,
        "run_id": run.run_id,
        "n": n,
        "inputs": n << n,
        "margin": float(bound.min()),
        "arithmetic": ARITHMETIC,
        "speaks_of": SPEAKS_OF,
    }
    for key, value in claims.items():
        if content.get(key) != value:
            raise CertificateError(f"{key} is not what follows from weights and leaves: {value!r}")
    if content.get("digest") != digest(content):
        raise CertificateError("the digest does not fit the contents: the file was changed")
    return Confirmed(run.name, run.model, claims["margin"], len(index))


def _leaves(leaves: Any, n: int) -> tuple[Ints, Ints, FloatArray]:
    """Leaves as arrays: index from 0, bits with -1 for *, bounds."""
    if not isinstance(leaves, list) or not leaves:
        raise CertificateError("it has no leaves")
    index, bits, bound = [], [], []
    for leaf in leaves:
        try:
            i, text, low = leaf
            good = type(i) is int and 1 <= i <= n and len(text) == n and set(text) <= set("01*")
            good = good and text[i - 1] != "*" and 0 < float(low) < math.inf
        except (TypeError, ValueError):
            good = False
        if not good:
            raise CertificateError(f"{leaf!r:.80} is no leaf of {n} bits with a bound above 0")
        index.append(i - 1)
        bits.append(["01*".index(each) for each in text])
        bound.append(float(low))
    codes = np.array(bits, np.int8)
    return np.array(index), np.where(codes == 2, np.int8(-1), codes), np.array(bound)


def uncovered(leaves: Ints, index: int, value: int, n: int) -> Ints | None:
    """Inputs of a case that no leaf covers, as a string with -1 for a free bit; None if all are.

    >>> uncovered(np.array([[1, 0, -1], [1, 1, 0]]), 0, 1, 3).tolist()
    [1, 1, 1]
    """
    start = np.full(n, -1, np.int8)
    start[index] = value
    todo = [(start, leaves)]
    while todo:
        node, near = todo.pop()  # inputs, and the leaves that hold some of them
        if not len(near):
            return node
        fixed = (near >= 0) & (node < 0)
        if not fixed.any(1).all():
            continue  # a leaf holds all of them
        j = int(fixed.sum(0).argmax())
        for bit in (0, 1):
            child = node.copy()
            child[j] = bit
            todo.append((child, near[near[:, j] != 1 - bit]))
    return None


def need_bounds(bounds: Bounds, index: Ints, bits: Ints, stated: FloatArray) -> None:
    """Raise `CertificateError` unless the margin is at least as stated over every leaf."""
    for start in range(0, len(index), bounds.batch):
        at = slice(start, start + bounds.batch)
        lower = bounds(index[at], bits[at]).lower
        wrong = np.flatnonzero(~(lower >= stated[at]))
        if len(wrong):
            k = int(wrong[0])
            raise CertificateError(
                f"a leaf of index {int(index[start + k]) + 1} is stated to have a margin of at "
                f"least {stated[start + k]:.6g}, but the weights give {lower[k]:.6g}"
            )
