"""The proof of a run as a file, and its check: this module knows nothing about the search.

The file holds the run's specification, the digest of its weights, what is proved and on what that
rests, and the leaves. A leaf is a set of inputs: an index, a string with * for a free bit, a lower
bound on the margin and, where needed, limits on linear functionals of the bits, in whole steps
(`bands.py`). The check reads the weights, verifies in integers that the leaves cover all n · 2^n
inputs (`coverage.py`), and bounds the margin over every leaf again (`leaf_checks.py`) with a second
implementation: what that confirms is proved. Where a kind of model allows it (`kinds.py`), leaves
that the second implementation does not confirm are bounded by the code of the search once more:
they are bounded, and unchecked. It does not need torch. Bounds are stated to five digits, rounded
down, so that another order of summation confirms them.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from ithbit.display import lower_text
from ithbit.errors import SpecError
from ithbit.spec import RunSpec, run_from_json
from ithbit.store.linked_files import owner, read_regular
from ithbit.store.records import SECOND
from ithbit.store.writing import json_bytes, write_output
from ithbit.theory.certificate import LONGEST, SPEAKS_OF
from ithbit.theory.certificate_file import (
    CannotReadError,
    CertificateError,
    digest,
    parsed,
    same_json,
)
from ithbit.theory.layers import FloatArray
from ithbit.verification.checks.interface import LeafCheck
from ithbit.verification.proofs.bands import STEP, everything
from ithbit.verification.proofs.coverage import (
    MOST_FUNCTIONALS,
    MOST_LEAVES,
    hole,
    in_steps,
)
from ithbit.verification.proofs.interface import ARITHMETIC, Leaves
from ithbit.verification.proofs.kinds import TRUSTED, kind_of, need_kind
from ithbit.verification.proofs.leaf_checks import (
    OneByOne,
    need_bounds,
    need_empty,
    recheck_leaves,
    text_of,
)

FORMAT, FIRST_FORMAT = "ithbit proof 2", "ithbit proof 1"  # the first does not state its kind
FORMATS = (FORMAT, FIRST_FORMAT)
_KINDS_OF_FIRST = ("one-layer", "two-layers")
PROVES = "on every input the logit has the sign of the right answer, and is at least margin in size"
_DIGITS = 5
_LARGEST = float(np.finfo(np.float64).max)
_LEAST = 1e-280  # below it five digits are none

Json = dict[str, Any]


@dataclass(frozen=True)
class Confirmed:
    """A certificate that was confirmed: the run, the margin on all inputs, and by what. Only if a
    second implementation confirmed it (`checked`) is the run proved right."""

    name: str
    inputs: int
    margin: float
    leaves: int
    checked: str  # `SECOND`, or "": by the bounds of the search alone
    arithmetic: str = ARITHMETIC

    def sentence(self) -> str:
        """What was confirmed, in words."""
        least, leaves = f"margin at least {lower_text(self.margin)}", f"{self.leaves:,} leaves"
        if self.checked:
            return (
                f"{self.name} is right on all {self.inputs:,} inputs, {least}, in {SPEAKS_OF} "
                f"({leaves}, each checked by a second implementation)"
            )
        return (
            f"{self.name} is bounded (unchecked by a second implementation): {least} over "
            f"{self.inputs:,} inputs by the bounds of the search, computed again ({leaves})"
        )

    def to_json(self) -> Json:
        verdict = "proved on all inputs" if self.checked else "bounded (unchecked)"
        return {"format": FORMAT, "verdict": verdict, "speaks_of": SPEAKS_OF} | asdict(self)


def stated(bound: float) -> float:
    """A positive bound to five digits, rounded down; `CertificateError` if not finite and positive.

    >>> stated(12.345678), stated(0.00123456789)
    (12.345, 0.0012345)
    """
    if not _LEAST < bound < math.inf:
        raise CertificateError(f"a leaf with the bound {bound} proves nothing")
    step = 10.0 ** (math.floor(math.log10(bound)) - _DIGITS + 1)
    near = float(f"{math.floor(bound / step) * step:.{_DIGITS}g}")
    return near if near <= bound else float(f"{near - step:.{_DIGITS}g}")


def document(run: RunSpec, weights: bytes, leaves: Leaves, functionals: FloatArray) -> Json:
    """The content of the certificate; functionals (functional, bit) are what limits apply to."""
    whole = everything(functionals, 1)[0]
    rows: list[Any] = sorted(
        [
            [int(i) + 1, text_of(row), None if bound == math.inf else stated(float(bound))]
            + ([[_steps(each) for each in limits]] if (limits != whole).any() else [])
            for i, row, limits, bound in zip(
                leaves.index, leaves.bits, leaves.limits, leaves.lower, strict=True
            )
        ],
        key=str,
    )
    margin = min((row[2] for row in rows if row[2] is not None), default=math.inf)
    sha = hashlib.sha256(weights).hexdigest()
    content = _claims(run, margin) | {"spec": run.to_json(), "weights_sha256": sha, "leaves": rows}
    if len(functionals):
        content["functionals"] = [_steps(row) for row in functionals]
    return content | {"digest": digest(content)}


def _claims(run: RunSpec, margin: float, form: str = FORMAT) -> Json:
    """What a certificate states besides its weights and leaves."""
    n, kind = run.model.n_bits, kind_of(run.model)
    claims = {
        "format": form,
        "name": run.name,
        "run_id": run.run_id,
        "n": n,
        "inputs": n << n,
        "margin": margin,
        "arithmetic": kind.arithmetic if kind is not None else ARITHMETIC,
        "speaks_of": SPEAKS_OF,
    }
    if form == FIRST_FORMAT:
        return claims | {"arithmetic": ARITHMETIC}
    more: Json = {"kind": "", "trusted": []}
    if kind is not None:
        more = {"kind": kind.name, "trusted": [*TRUSTED, *kind.trusted]}
    return claims | more | {"proves": PROVES}


def _steps(values: FloatArray) -> list[int]:
    return [int(x) for x in values / STEP]


def encoded(content: Json) -> bytes:
    """The file, one line per leaf."""
    rest = {name: value for name, value in content.items() if name != "leaves"}
    lines = ",\n".join("  " + json.dumps(leaf) for leaf in content["leaves"])
    text = json_bytes(rest).decode().rstrip().removesuffix("}").rstrip()
    return f'{text},\n "leaves": [\n{lines}\n ]\n}}\n'.encode()


def write(path: Path, content: Json) -> None:
    """Write the file atomically."""
    write_output(path, encoded(content))


def weights_of(weights: bytes) -> Mapping[str, FloatArray]:
    """Stored weights as arrays of float64; raises `CertificateError` if they are not float32."""
    try:
        found = load(weights)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CertificateError(f"the weights are damaged: {error!s:.200}") from error
    for name, value in found.items():
        if value.dtype != np.float32:
            raise CertificateError(f"the weights must be float32, got {value.dtype} for {name!r}")
    return {name: value.astype(np.float64) for name, value in found.items()}


def check_proof(path: Path, content: Json, one_by_one: OneByOne = iter) -> Confirmed:
    """Confirm the proof in a file for the weights next to it; raises `CertificateError`."""
    try:
        weights = read_regular(path.with_name("weights.safetensors"))
    except OSError as error:
        raise CannotReadError(
            f"{path} needs its weights next to it, as weights.safetensors: {error.strerror}"
        ) from error
    try:
        return confirmed(content, weights, one_by_one=one_by_one)
    except CertificateError as reason:
        raise CertificateError(f"{path} is refused: {reason}") from reason


def confirmed_bytes(
    data: bytes,
    weights: bytes,
    run: RunSpec | None,
    one_by_one: OneByOne = iter,
    check: LeafCheck | None = None,
) -> Confirmed:
    """The proof in the bytes of a file, if everything holds that they state and it is about that
    run, if one is given; else raises. Other lengths and heads have weights of the same shapes. A
    second implementation for these weights may be given, else it is made."""
    try:
        content = parsed(data)
    except ValueError as error:
        raise CertificateError(str(error)) from error
    if run is not None and not same_json(content.get("spec"), run.to_json()):
        raise CertificateError(f"it is about another run than {run.folder}")
    return confirmed(content, weights, one_by_one, check)


def confirmed(
    content: Json, weights: bytes, one_by_one: OneByOne = iter, check: LeafCheck | None = None
) -> Confirmed:
    """The proof, if everything holds that the content states about these weights; raises
    `CertificateError` with the reason if not."""
    try:
        return _confirmed(content, weights, one_by_one, check)
    except ZeroDivisionError as reason:  # sums of exponentials that underflowed
        raise CertificateError("the weights are too large to be bounded") from reason
    except MemoryError as reason:
        raise CertificateError("its check needs more memory than there is") from reason
    except (SpecError, ArithmeticError, RecursionError) as reason:
        raise CertificateError(str(reason)) from reason


def _confirmed(
    content: Json, weights: bytes, one_by_one: OneByOne, check: LeafCheck | None
) -> Confirmed:
    if content.get("weights_sha256") != hashlib.sha256(weights).hexdigest():
        raise CertificateError("it is for other weights: their digest is not the one stated")
    try:
        run = run_from_json(content["spec"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = repr(str(error))
        raise CertificateError(f"its specification cannot be read: {reason:.300}") from error
    if owner(weights) not in (None, run.run_id):
        raise CertificateError(f"the weights are those of another run, {owner(weights)!r:.40}")
    n = run.model.n_bits
    if n > LONGEST:
        raise CertificateError(f"its n is more than {LONGEST:,}")
    leaves, functionals = read_leaves(content, n)
    found = hole(leaves, functionals)
    if found is not None:
        i, string = found
        raise CertificateError(f"no leaf covers the inputs {text_of(string)} with index {i + 1}")
    margin = float(leaves.lower.min())
    if not margin < math.inf:
        raise CertificateError("no leaf has a bound")
    kind, form = kind_of(run.model), content.get("format")
    if form not in FORMATS or (form == FIRST_FORMAT and kind and kind.name not in _KINDS_OF_FIRST):
        raise CertificateError(f"its format is not {FORMAT!r}")
    claims = _claims(run, margin, form) | {"spec": run.to_json()}
    for key, value in claims.items():
        if not same_json(content.get(key), value):
            raise CertificateError(
                f"{key} is not what follows from weights and leaves: {value!r:.300}"
            )
    known = {*claims, "weights_sha256", "leaves", "functionals", "digest"}
    if unknown := sorted(content.keys() - known):
        raise CertificateError(f"it states more than a proof does: {unknown[0]!r:.80}")
    if content.get("digest") != digest(content):
        raise CertificateError("the digest does not fit the contents: the file was changed")
    params = weights_of(weights)
    kind = need_kind(run.model, params)
    if len(functionals) and not kind.may_be_limited:
        raise CertificateError(f"a proof of {kind.models} has no functionals")
    need_empty(leaves, functionals)
    by = ""
    try:
        if check is None and kind.check is not None:
            check = kind.check(run.model, params)
        if check is not None:
            recheck_leaves(check, leaves, one_by_one)
            by = SECOND
    except (CertificateError, ArithmeticError):
        if not kind.may_be_unchecked:
            raise
    if not by:
        bounds = kind.bounds_again or kind.bounds
        need_bounds(bounds(run.model, params, functionals), leaves, one_by_one)
    arithmetic = claims["arithmetic"]
    return Confirmed(run.name, claims["inputs"], margin, len(leaves), by, arithmetic)


def read_leaves(content: Json, n: int) -> tuple[Leaves, FloatArray]:
    """The leaves of a certificate for n bits, and the functionals that their limits apply to."""
    rows = content.get("leaves")
    if not isinstance(rows, list) or not rows:
        raise CertificateError("it has no leaves")
    if len(rows) > MOST_LEAVES:
        raise CertificateError(f"it has {len(rows):,} leaves, more than {MOST_LEAVES:,}")
    functionals = _functionals(content.get("functionals", []), n)
    whole = everything(functionals, 1)[0]
    most = [int(each) for each in in_steps(whole[:, 1])]
    index, bits, limits, lower = [], [], [], []
    for row in rows:
        if not _is_leaf(row, n, most):
            raise CertificateError(f"{row!r:.80} is not a leaf of {n} bits with a bound above 0")
        i, text, low, *more = row
        index.append(i - 1)
        bits.append(np.frombuffer(text.encode(), np.uint8))
        limits.append(np.array(more[0], float) * STEP if more else whole)
        lower.append(math.inf if low is None else float(low))
    codes = np.array(bits)
    found = np.where(codes == ord("*"), -1, codes.astype(np.int8) - ord("0")).astype(np.int8)
    return Leaves(np.array(index), found, np.array(limits), np.array(lower)), functionals


def _is_leaf(row: Any, n: int, most: list[int]) -> bool:
    """Whether a row has an index, a string, a bound or None, and maybe limits in whole steps that
    do not exceed what strings reach: `most` of each functional."""
    if type(row) is not list or len(row) not in (3, 4):
        return False
    i, text, low, *more = row
    if type(i) is not int or not 1 <= i <= n or type(text) is not str or len(text) != n:
        return False
    if not set(text) <= set("01*") or text[i - 1] == "*":
        return False
    # Compared as they are: an integer may be too large for a float.
    if low is not None and not (type(low) in (int, float) and 0 < low <= _LARGEST):
        return False
    if not more:
        return True
    limits = more[0]
    return (
        type(limits) is list
        and len(limits) == len(most) > 0
        and all(
            type(each) is list
            and len(each) == 2
            and all(type(end) is int for end in each)
            and -reach <= each[0] <= each[1] <= reach
            for each, reach in zip(limits, most, strict=True)
        )
    )


def _functionals(rows: Any, n: int) -> FloatArray:
    """Functionals in whole steps, with entries in [-1, 1], so that their sums are exact."""
    one = round(1 / STEP)
    good = (
        type(rows) is list
        and len(rows) <= MOST_FUNCTIONALS
        and all(
            type(row) is list
            and len(row) == n
            and all(type(x) is int and -one <= x <= one for x in row)
            for row in rows
        )
    )
    if not good:
        raise CertificateError(f"its functionals are not rows of {n} whole steps")
    return np.array(rows, float).reshape(len(rows), n) * STEP
