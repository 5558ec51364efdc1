"""Solutions as plain JSON values and back, without loss: float64 numbers in shortest spelling."""

from dataclasses import fields
from typing import Any

import numpy as np

from ithbit.errors import SpecError, whole
from ithbit.families import task_named
from ithbit.spec import ModelSpec
from ithbit.theory.gru_layer import Gru
from ithbit.theory.layers import (
    FloatArray,
    Layer,
    LinearAttention,
    ReluNet,
    Rnn,
    SoftmaxAttention,
    Ssm,
    matrix,
)
from ithbit.theory.solution import Embedding, Solution
from ithbit.theory.trained_blocks import shapes
from ithbit.theory.trained_solution import TrainedSolution

Json = dict[str, Any]

_VECTORS = ("h0", "bias_ih", "bias_hh")  # all other arrays of a layer are matrices
_CLASSES: dict[str, Any] = {
    "softmax": SoftmaxAttention,
    "linear": LinearAttention,
    "ssm": Ssm,
    "rnn": Rnn,
    "gru": Gru,
}


def weights_to_json(solution: Solution | TrainedSolution) -> Json:
    """Embedding, layers and output matrix as nested lists; of trained blocks, every parameter.

    >>> from ithbit.theory.constructions import construct
    >>> weights_to_json(construct("lhi", "rnn", 1))["embedding"]
    {'index': [[-1.0]], 'bit': [[[3.0], [1.0]]], 'end': [3.0]}
    """
    if isinstance(solution, TrainedSolution):
        return {name: value.tolist() for name, value in solution.weights.items()}
    table = solution.embedding
    return {
        "embedding": {
            "index": table.index.tolist(),
            "bit": table.bit.tolist(),
            "end": None if table.end is None else table.end.tolist(),
        },
        "layers": [_layer_to_json(layer) for layer in solution.layers],
        "output": solution.output.tolist(),
    }


def solution_from_json(content: Json) -> Solution | TrainedSolution:
    """The solution that a certificate's fields describe; raises `SpecError` where they do not."""
    try:
        weights = content["weights"]
        if content.get("model") == "trained":
            return _trained_from_json(content, weights)
        table = weights["embedding"]
        return Solution(
            task=task_named(content["task"]),
            family=content["family"],
            n_bits=whole("n", content["n"]),
            layers=tuple(_layer_from_json(layer) for layer in weights["layers"]),
            embedding=Embedding(
                index=_array(table["index"], 2),
                bit=_array(table["bit"], 3),
                end=None if table["end"] is None else _array(table["end"], 1),
            ),
            output=_array(weights["output"], 2),
            theorem=content["theorem"],
            variant=content["variant"],
        )
    except KeyError as missing:
        raise SpecError(f"the field {missing} is missing") from missing
    except (TypeError, AttributeError, IndexError) as error:
        raise SpecError(f"the weights are not laid out as weights are ({error})") from error


def _trained_from_json(content: Json, weights: Json) -> TrainedSolution:
    spec = ModelSpec(**content["spec"])
    found = (spec.task, spec.family, spec.n_bits)
    if found != (content["task"], content["family"], content["n"]):
        raise SpecError(f"the spec speaks of {' '.join(map(str, found))}")
    known = {name: len(shape) for name, shape in shapes(spec).items()}
    arrays = {name: _array(value, known.get(name, 1)) for name, value in weights.items()}
    return TrainedSolution(spec, arrays, content["theorem"], content["variant"])


def _array(values: Any, ndim: int) -> FloatArray:
    try:
        array = np.array(values, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise SpecError(f"an array of weights is ragged or holds something else: {error}") from None
    return matrix(array, ndim)


def _net_to_json(net: ReluNet) -> Json:
    return {
        "weights": [weight.tolist() for weight in net.weights],
        "biases": [bias.tolist() for bias in net.biases],
    }


def _net_from_json(content: Json) -> ReluNet:
    return ReluNet(
        tuple(_array(weight, 2) for weight in content["weights"]),
        tuple(_array(bias, 1) for bias in content["biases"]),
    )


def _layer_to_json(layer: Layer) -> Json:
    content: Json = {"kind": layer.kind}
    for field in fields(layer):  # type: ignore[arg-type]
        value = getattr(layer, field.name)
        if isinstance(value, ReluNet):
            value = _net_to_json(value)
        content[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
    return content


def _layer_from_json(content: Json) -> Layer:
    kind = content["kind"]
    if kind not in _CLASSES:
        raise SpecError(f"unknown kind of layer {kind!r}; known are {', '.join(_CLASSES)}")
    values: Json = {}
    for field in fields(_CLASSES[kind]):
        name, value = field.name, content[field.name]
        if field.type is ReluNet:
            value = _net_from_json(value)
        elif field.type == FloatArray:
            value = _array(value, 1 if name in _VECTORS else 2)
        elif field.type is bool and not isinstance(value, bool):
            raise SpecError(f"{name} must be true or false, got {value!r}")
        values[name] = value
    layer: Layer = _CLASSES[kind](**values)
    return layer
