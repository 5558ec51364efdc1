"""Solutions to plain JSON values and back without loss: float64 numbers in their shortest form."""

from dataclasses import fields, is_dataclass
from typing import Any, get_args

import numpy as np

from ithbit.errors import SpecError, whole
from ithbit.families import task_named
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray, ReluNet, matrix
from ithbit.theory.solution import AnySolution, Embedding, Layer, Solution, TrainedSolution
from ithbit.theory.trained_blocks import shapes

Json = dict[str, Any]

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
        weights = content["weights"]
        if content.get("model") == "trained":
            return _trained_from_json(content, weights)
        return Solution(
            task=task_named(content["task"]),
            family=content["family"],
            n_bits=whole("n", content["n"]),
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
    layer: Layer = _read(_CLASSES[kind], content)
    return layer


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
