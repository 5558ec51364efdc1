"""The certificate as a JSON file, and its re-verification from the file alone.

The file holds the weights themselves, the claim (margin, inputs, arithmetic, method) and a digest.
The check rebuilds the solution from the weights, re-derives the bound with the method the file
names, and compares everything the file states with what follows from the weights; it trusts
nothing but the program that runs it. The digest, compared last, catches changes that leave a true
claim true.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from ithbit.errors import IthbitError, OutputError, SpecError
from ithbit.spec import plain
from ithbit.store.writing import check_writable, write_whole
from ithbit.tasks.indexing import Instance
from ithbit.theory.certificate import LONGEST, METHODS, SPEAKS_OF, Certificate, certify
from ithbit.theory.precision import observed
from ithbit.theory.solution import AnySolution, TrainedSolution
from ithbit.theory.weights_json import Json, solution_from_json, weights_to_json

FORMAT = "ithbit certificate 1"
# How much a float64 run of the stored worst input may differ on another machine.
_OBSERVED_TOLERANCE = 1e-6
# How far a stated bound may be below the re-derived one; more is a change, not rounding.
_MARGIN_SLACK = 1e-9


class CertificateError(IthbitError):
    """A certificate that cannot be read, or does not hold."""


def require_writable(n_bits: int) -> None:
    """Raise `SpecError` if the number of inputs has too many digits to be written."""
    if n_bits > LONGEST:
        raise SpecError(
            f"certificates are written for n up to {LONGEST}, got n = {n_bits}; take a shorter n, "
            "or use `ithbit verdict`, which reports what is proved for every n"
        )


def summary(certificate: Certificate) -> Json:
    """The claim without the weights, as plain JSON values."""
    solution, worst = certificate.solution, certificate.worst
    require_writable(solution.n_bits)
    finite = bool(np.isfinite(certificate.margin))
    trained: Json = {}
    if isinstance(solution, TrainedSolution):
        trained = {"model": "trained", "spec": plain(solution.spec)}
    return {
        "format": FORMAT,
        **trained,
        "task": solution.task,
        "family": solution.family,
        "variant": solution.variant,
        "theorem": solution.theorem,
        "n": solution.n_bits,
        "depth": solution.depth,
        "width": solution.width,
        "sizes": list(solution.sizes),
        "certified": certificate.certified,
        "margin": certificate.margin if finite else None,
        "inputs": certificate.inputs,
        "arithmetic": certificate.arithmetic,
        "method": certificate.method,
        "derivation": certificate.derivation,
        "speaks_of": SPEAKS_OF,
        "worst": {
            "index": worst.index,
            "bits": "".join(map(str, worst.bits)),
            "observed_margin": worst.margin if np.isfinite(worst.margin) else None,
        },
    }


def document(certificate: Certificate) -> Json:
    """The whole certificate: claim, weights, what was observed of float runs, and digest."""
    solution = certificate.solution
    content = summary(certificate) | {
        "float_execution": observed(solution),
        "weights": weights_to_json(solution),
    }
    return content | {"digest": digest(content)}


def digest(content: Json) -> str:
    """sha256 of the content without its digest, in one fixed JSON form."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    spelled = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(spelled.encode()).hexdigest()


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Write the file atomically: complete or not at all."""
    text = json.dumps(document(certificate)) + "\n"
    try:
        check_writable(path)
        write_whole(path, text.encode())
    except OutputError as error:
        raise CertificateError(str(error)) from error


def check_certificate(path: Path) -> Certificate:
    """Re-verify a certificate file; return the re-derived certificate or raise with the reason.

    Raises:
        CertificateError: the file cannot be read, or something it states does not follow from its
            weights.
    """
    content = read_certificate(path)
    if content.get("format") != FORMAT:
        raise CertificateError(f"{path} is not a certificate: its format is not {FORMAT!r}")
    try:
        return _check(content)
    except (SpecError, CertificateError, OverflowError) as reason:
        raise CertificateError(f"{path} is refused: {reason}") from reason


def read_certificate(path: Path) -> Json:
    """The contents of a certificate file, whatever its format."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CertificateError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(content, dict):
        raise CertificateError(f"{path} is not a certificate: its format is not {FORMAT!r}")
    return content


def _check(content: Json) -> Certificate:
    solution = solution_from_json(content)
    method, claimed = content.get("method"), content.get("margin")
    if method not in list(METHODS):  # the file may have a list there
        raise CertificateError(f"the method {method!r} is unknown")
    if isinstance(claimed, bool) or not isinstance(claimed, int | float):
        raise CertificateError(f"the margin must be a number, got {claimed!r}")
    derived = certify(solution, method)
    if not derived.certified:
        raise CertificateError(f"the weights give only a margin >= {derived.margin:.6g}")
    if not derived.margin * (1 - _MARGIN_SLACK) <= claimed <= derived.margin:
        raise CertificateError(
            f"the margin is stated as {claimed!r}, but the weights give {derived.margin!r}"
        )
    for key, value in summary(derived).items():
        if key not in ("margin", "worst") and content.get(key) != value:
            raise CertificateError(f"{key} is not what follows from the weights: {_short(value)}")
    _check_worst(content.get("worst"), solution)
    if content.get("digest") != digest(content):
        raise CertificateError("the digest does not match the contents: the file was changed")
    return derived


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:28]}…{text[-28:]}"


def _check_worst(worst: Any, solution: AnySolution) -> None:
    """Check that the worst input found is an input and has the stated margin."""
    if not isinstance(worst, dict) or not isinstance(worst.get("bits"), str):
        raise CertificateError("the worst input is missing")
    bits = tuple(int(bit) if bit in "01" else -1 for bit in worst["bits"])
    index, stated = worst.get("index"), worst.get("observed_margin")
    if not isinstance(index, int) or not isinstance(stated, int | float):
        raise CertificateError("the worst input has no index or no observed margin")
    instance = Instance(solution.task, bits, index)
    if len(bits) != solution.n_bits:
        raise CertificateError(f"the worst input has {len(bits)} bits, n is {solution.n_bits}")
    seen = float(solution.margins(np.array([instance.bits]), np.array([index]))[0])
    if not abs(seen - stated) <= _OBSERVED_TOLERANCE * max(1.0, abs(seen)):
        raise CertificateError(f"the worst input has margin {seen:.9g}, the file says {stated}")
