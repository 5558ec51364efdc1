"""The certificate of a construction as a JSON file, and its check from that file alone.

The file holds the weights themselves without loss, as float64 numbers in their shortest form, the
claim (margin, inputs, arithmetic, method) and a digest. The check rebuilds the solution from the
weights, re-derives the bound with the method the file names, and compares everything the file
claims with what follows from the weights; it trusts nothing but the program that runs it. What was
observed of float runs is no claim, must be marked so, and is not run again. The digest, compared
last, catches changes that leave a true claim true.
"""

import hashlib
import json
import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ithbit.display import lower_text
from ithbit.errors import IthbitError, SpecError, as_int
from ithbit.families import task_named
from ithbit.spec import ModelSpec
from ithbit.store.bounded_json import MOST_BYTES, bounded_json
from ithbit.store.writing import write_text
from ithbit.tasks.indexing import Instance
from ithbit.theory.certificate import (
    FORMAT,
    LONGEST,
    METHODS,
    SLACK,
    Certificate,
    certify,
    shortened,
)
from ithbit.theory.layers import FloatArray, ReluNet, matrix
from ithbit.theory.precision import OBSERVED
from ithbit.theory.solution import AnySolution, Embedding, Layer, Solution, TrainedSolution
from ithbit.theory.trained_blocks import shapes

Json = dict[str, Any]

# How much a float64 run of the stored worst input may differ on another machine.
_OBSERVED_TOLERANCE = 1e-6
# How far a stated bound may be below the re-derived one; more is a change, not rounding.
_MARGIN_SLACK = 1e-9


class CertificateError(IthbitError):
    """A certificate that does not hold; the command line exits with status 1. Its sentence may
    quote the file, so characters that do not print are escaped."""

    exit_status = 1

    def __init__(self, sentence: str) -> None:
        super().__init__(
            "".join(each if each.isprintable() else repr(each)[1:-1] for each in sentence)
        )


class CannotReadError(CertificateError):
    """A certificate, or the weights it is about, that cannot be read: nothing was checked."""

    exit_status = 2


def document(certificate: Certificate) -> Json:
    """The whole certificate: claim, weights, what was observed of float runs, and digest."""
    content = certificate.to_json() | {"weights": weights_to_json(certificate.solution)}
    return content | {"digest": digest(content)}


def digest(content: Json) -> str:
    """sha256 of the content without its digest, in one fixed JSON form."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    spelled = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(spelled.encode()).hexdigest()


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Write the file atomically: complete or not at all. Raises `OutputError`."""
    write_text(path, json.dumps(document(certificate)) + "\n")


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
    except (SpecError, CertificateError, ArithmeticError, RecursionError) as reason:
        raise CertificateError(f"{path} is refused: {reason}") from reason


def read_certificate(path: Path) -> Json:
    """The contents of a certificate file, whatever its format."""
    try:
        if path.exists() and not path.is_file():  # a device or a pipe may never end
            raise CannotReadError(f"cannot read {path}: it is not a file")
        if path.stat().st_size > MOST_BYTES:
            raise CannotReadError(f"cannot read {path}: it has more than {MOST_BYTES:,} bytes")
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # a name with a null character is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise CannotReadError(f"cannot read {path}: {reason}") from error
    try:
        return parsed(data)
    except ValueError as error:
        raise CertificateError(f"{path} {error}") from error


def parsed(data: bytes) -> Json:
    """The JSON object in the bytes of a certificate. Raises ValueError for anything else, also for
    what JSON readers understand differently: a name given twice, NaN, infinity, numbers that are
    too large, and text that is not UTF-8."""
    try:
        content = bounded_json(
            data, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not a JSON file: {str(error)!r:.200}") from error
    if not isinstance(content, dict):
        raise ValueError(f"is not a certificate: its format is not {FORMAT!r}")
    return content


def _object(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is too large")
    return value


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON: 1, 1.0 and true are three values.

    >>> same_json(1, True), same_json([1], [1.0]), same_json({"a": None}, {"a": None})
    (False, False, True)
    """
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _check(content: Json) -> Certificate:
    solution = solution_from_json(content)
    for name in ("theorem", "variant"):
        if not (isinstance(content[name], str) and content[name].isprintable()):
            raise CertificateError(f"{name} is not a line of text: {content[name]!r:.80}")
    if not same_json(weights_to_json(solution), content["weights"]):
        raise CertificateError("its weights hold something that is not a weight in float64")
    method, claimed = content.get("method"), content.get("margin")
    if method not in list(METHODS):  # the file may have a list there
        raise CertificateError(f"the method {method!r:.80} is unknown")
    if isinstance(claimed, bool) or not isinstance(claimed, int | float):
        raise CertificateError(f"the margin must be a number, got {claimed!r:.80}")
    derived = certify(solution, method)
    if not derived.certified:
        raise CertificateError(f"the weights give only a margin >= {lower_text(derived.margin)}")
    # Half of what a bound found in floats was lowered by: still below that bound.
    most = derived.margin * (1 + SLACK / 2) if method == "boxes" else derived.margin
    if not derived.margin * (1 - _MARGIN_SLACK) <= claimed <= most:
        raise CertificateError(
            f"the margin is stated as {claimed!r:.40}, but the weights give {derived.margin!r}"
        )
    summary = derived.summary()
    for key, value in summary.items():
        if key not in ("margin", "worst") and not same_json(content.get(key), value):
            shown = shortened(repr(value), 60, 28)
            raise CertificateError(f"{key} is not what follows from the weights: {shown}")
    if unknown := sorted(content.keys() - {*summary, "float_execution", "weights", "digest"}):
        raise CertificateError(f"it states more than a certificate does: {unknown[0]!r:.80}")
    seen = content.get("float_execution")
    if not isinstance(seen, dict) or seen.get("kind") != OBSERVED:
        raise CertificateError(f"float_execution is not marked as {OBSERVED!r}")
    _check_worst(content.get("worst"), solution)
    if content.get("digest") != digest(content):
        raise CertificateError("the digest does not match the contents: the file was changed")
    return derived


def _check_worst(worst: Any, solution: AnySolution) -> None:
    """Check that the worst input found is an input and has the stated margin."""
    if not isinstance(worst, dict) or not isinstance(worst.get("bits"), str):
        raise CertificateError("the worst input is missing")
    bits = tuple(int(bit) if bit in "01" else -1 for bit in worst["bits"])
    index, stated = worst.get("index"), worst.get("observed_margin")
    if type(index) is not int or isinstance(stated, bool) or not isinstance(stated, int | float):
        raise CertificateError("the worst input has no index or no observed margin")
    instance = Instance(solution.task, bits, index)
    if len(bits) != solution.n_bits:
        raise CertificateError(f"the worst input has {len(bits)} bits, n is {solution.n_bits}")
    with np.errstate(all="ignore"):  # where these weights overflow, the margins are not the same
        seen = float(solution.margins(np.array([instance.bits]), np.array([index]))[0])
    if not abs(seen - stated) <= _OBSERVED_TOLERANCE * max(1.0, abs(seen)):
        raise CertificateError(
            f"the worst input has margin {seen:.9g}, the file says {stated!r:.40}"
        )


# Number of axes of the arrays that are not matrices.
_AXES = {"h0": 1, "bias_ih": 1, "bias_hh": 1, "biases": 1, "bit": 3, "end": 1}
_CLASSES: dict[str, Any] = {layer.kind: layer for layer in get_args(Layer)}


def weights_to_json(solution: AnySolution) -> Json:
    """Embedding, layers and output matrix as nested lists; for trained blocks, every parameter.

    >>> from ithbit.theory.constructions import construct
    >>> weights_to_json(construct("lhi", "rnn", 1))["embedding"]
    {'index': [[-1.0]], 'bit': [[[3.0], [1.0]]], 'end': [3.0]}
    """
    if isinstance(solution, TrainedSolution):
        return {name: value.tolist() for name, value in solution.weights.items()}
    return {
        "embedding": _plain(solution.embedding),
        "layers": [{"kind": layer.kind} | _plain(layer) for layer in solution.layers],
        "output": solution.output.tolist(),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value.tolist() if isinstance(value, np.ndarray) else value


def solution_from_json(content: Json) -> AnySolution:
    """The solution that a certificate's fields describe; raises `SpecError` if there is none."""
    try:
        weights, n = content["weights"], as_int("n", content["n"])
        if n > LONGEST:  # a few weights of trained blocks may be for any n
            raise SpecError(f"its n is more than {LONGEST:,}")
        if not isinstance(content["family"], str):
            raise SpecError(f"the family is not text: {content['family']!r:.80}")
        if content.get("model") == "trained":
            return _trained_from_json(content, weights)
        return Solution(
            task=task_named(content["task"]),
            family=content["family"],
            n_bits=n,
            layers=tuple(_layer(layer) for layer in weights["layers"]),
            embedding=_read(Embedding, weights["embedding"]),
            output=_array(weights["output"], 2),
            theorem=content["theorem"],
            variant=content["variant"],
        )
    except KeyError as missing:
        raise SpecError(f"the field {missing} is missing") from missing
    except (TypeError, AttributeError, IndexError) as error:
        raise SpecError(f"the weights do not have the expected layout ({error})") from error


def _trained_from_json(content: Json, weights: Json) -> TrainedSolution:
    spec = ModelSpec(**content["spec"])
    found = (spec.task, spec.family, spec.n_bits)
    if found != (content["task"], content["family"], content["n"]):
        raise SpecError(f"task, family and n do not match the spec: {' '.join(map(str, found))}")
    if spec.n_layers > len(weights):  # of each layer there are some; the names alone fill memory
        raise SpecError(f"it has {spec.n_layers:,} layers, but {len(weights):,} arrays of weights")
    known = {name: len(shape) for name, shape in shapes(spec).items()}
    arrays = {name: _array(value, known.get(name, 1)) for name, value in weights.items()}
    return TrainedSolution(spec, arrays, content["theorem"], content["variant"])


def _array(values: Any, ndim: int) -> FloatArray:
    try:
        array = np.array(values, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise SpecError(f"an array of weights is ragged or holds non-numbers: {error}") from None
    return matrix(array, ndim)


def _layer(content: Json) -> Layer:
    kind = content["kind"]
    if kind not in _CLASSES:
        raise SpecError(f"unknown kind of layer {kind!r}; choose one of {', '.join(_CLASSES)}")
    return _read(_CLASSES[kind], content)


def _read(cls: Any, content: Json) -> Any:
    """The inverse of `_plain` for a dataclass of arrays and nets."""
    values: Json = {}
    for field in fields(cls):
        name, value = field.name, content[field.name]
        axes = _AXES.get(name, 2)
        if field.type is ReluNet:
            value = _read(ReluNet, value)
        elif cls is ReluNet:
            value = tuple(_array(each, axes) for each in value)
        elif field.type == FloatArray or (name == "end" and value is not None):
            value = _array(value, axes)
        elif field.type is bool and not isinstance(value, bool):
            raise SpecError(f"{name} must be true or false, got {value!r}")
        values[name] = value
    return cls(**values)
