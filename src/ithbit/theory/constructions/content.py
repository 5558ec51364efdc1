"""How a token's content sits in a normalised residual stream, and the parts all blocks share.

A token holds a few numbers, its *content* a in R^m; the stream holds x = U a. The columns U_j are
integer vectors, orthogonal to each other and to (1, …, 1), with |U_j|^2 = nu_j. So the mean of x
is 0, and LayerNorm without gain and offset is exactly

    a -> s a,   s = sqrt(d) / sqrt(sum_j nu_j a_j^2 + d eps).

A row r_j U_j reads r_j nu_j a_j, and writing a_j adds a_j U_j. Entries of U are 0, ±1 and ±2, so
a float times a column is exact: stored weights lie in the span of U exactly, with rounded
factors. From d = 2m on the columns are e_2k − e_2k+1 (nu = 2). Below that some share coordinates;
a row that reads two of them uses columns that share none, or rounding would move its sum out of the
span.
"""

import math

import numpy as np

from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray
from ithbit.theory.trained_blocks import shapes

Weights = dict[str, FloatArray]  # the parameters of trained blocks, by name

# Columns of the narrowest streams, by the number of contents; each line is one column.
_NARROW = {
    3: ((1, -1, 0, 0), (0, 0, 1, -1), (1, 1, -1, -1)),
    5: (
        (1, -1, 0, 0, 0, 0),
        (0, 0, 1, -1, 0, 0),
        (0, 0, 0, 0, 1, -1),
        (1, 1, -1, -1, 0, 0),
        (1, 1, 1, 1, -2, -2),
    ),
}
LEAST_WIDTH = {m: len(lines[0]) for m, lines in _NARROW.items()}


def columns(width: int, order: tuple[int, ...]) -> FloatArray:
    """U, of shape (width, m); `order` is which column each content takes in a narrow stream.

    >>> columns(4, (0, 1, 2))[:, 2].tolist(), columns(6, (0, 1, 2))[:, 2].tolist()
    ([1.0, 1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0, 1.0, -1.0])
    """
    m = len(order)
    found = np.zeros((width, m))
    for j, place in enumerate(order):
        if width >= 2 * m:
            found[2 * j : 2 * j + 2, j] = 1, -1
        else:
            line = _NARROW[m][place]
            found[: len(line), j] = line
    return found


def norms(U: FloatArray) -> list[float]:
    """nu_j = |U_j|^2, integers."""
    return [float(value) for value in (U * U).sum(0)]


def reader(U: FloatArray, coefficients: dict[int, float]) -> FloatArray:
    """The row that reads sum_j c_j a_j, up to rounding of each factor."""
    nu = norms(U)
    return sum(((c / nu[j]) * U[:, j] for j, c in coefficients.items()), np.zeros(len(U)))


def writer(U: FloatArray, coefficients: dict[int, float]) -> FloatArray:
    """The column that adds c_j to a_j."""
    return sum((c * U[:, j] for j, c in coefficients.items()), np.zeros(len(U)))


def zeros(spec: ModelSpec) -> Weights:
    """All parameters at 0, except the gains of norms at 1."""
    return {
        name: np.full(shape, 1.0 if is_norm(name) and name.endswith("weight") else 0.0)
        for name, shape in sorted(shapes(spec).items(), key=lambda item: _order_in_files(item[0]))
    }


def _order_in_files(name: str) -> tuple[int, int]:
    """Where certificates list a parameter; kept, so that the same one has the same bytes. Attention
    blocks end with their norms there, and `leave` stands before the blocks."""
    stage, *rest = name.split(".")
    stages = ("embed", "positions", "enter", "leave", "blocks", "head")
    in_block = stage == "blocks" and 2 * int(rest[0]) + rest[1].startswith(("norm1", "norm2"))
    return stages.index(stage), int(in_block)


def is_norm(name: str) -> bool:
    """Whether a parameter is a norm's gain or offset."""
    return name.split(".")[-2:-1] in (["norm"], ["norm1"], ["norm2"], ["gate_norm"])


def sharpness(ratio: float) -> float:
    """lambda(c^2) with 1 − cos(theta_k − theta_i) >= lambda (k − i)^2 / N^2, theta = arctan(p / c).

    theta' = c / (c^2 + p^2) >= c / (c^2 + 1) for p in [0, 1], |theta| <= arctan(1 / c) =: x, and
    1 − cos t >= (t^2 / 2)(1 − t^2 / 12) is increasing up to x.
    """
    x = math.atan(1 / math.sqrt(ratio))
    return 0.5 * (1 - x * x / 12) * ratio / (ratio + 1) ** 2
