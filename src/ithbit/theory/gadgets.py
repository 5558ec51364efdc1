"""Small exact ReLU nets that the constructions are made of, each with its error statement.

All are *exact* as real functions. Each reads one number s = direction · x of its input, so that the
same gadget serves an attention layer (s = x + a) and a recurrent one (s = x + h).

r+ means max(r, 0).
"""

from collections.abc import Sequence

from ithbit.errors import SpecError
from ithbit.theory.layers import ReluNet, matrix


def affine(weight: Sequence[Sequence[float]], bias: Sequence[float]) -> ReluNet:
    """The affine map W x + b: an MLP without a hidden layer.

    >>> import numpy as np
    >>> affine([[2.0]], [1.0])(np.array([[3.0]])).item()
    7.0
    """
    return ReluNet((matrix(weight),), (matrix(bias, 1),))


def constant(values: Sequence[float], d_in: int) -> ReluNet:
    """The constant map, which ignores its input."""
    return affine([[0.0] * d_in] * len(values), values)


def two_step(
    hidden: Sequence[Sequence[float]],
    shifts: Sequence[float],
    weight: Sequence[Sequence[float]],
    bias: Sequence[float],
) -> ReluNet:
    """weight · (hidden · x + shifts)+ + bias: an MLP with one hidden layer."""
    return ReluNet((matrix(hidden), matrix(weight)), (matrix(shifts, 1), matrix(bias, 1)))


def ramp(slope: float, offset: float, direction: Sequence[float] = (1.0,)) -> ReluNet:
    """slope · (s)+ + offset; one hidden unit.

    >>> import numpy as np
    >>> ramp(2.0, -1.0)(np.array([[-3.0], [0.0], [1.0]])).ravel().tolist()
    [-1.0, -1.0, 1.0]
    """
    return two_step([list(direction)], [0.0], [[slope]], [offset])


def hat(width: float, direction: Sequence[float] = (1.0,)) -> ReluNet:
    """The tent (1 − |s| / width)+ = ((s + width)+ − 2 (s)+ + (s − width)+) / width; three units.

    Marks s = 0 among integers once s is known up to an error e: at most e / width is lost at
    s = 0, and the value is exactly 0 at the other integers as long as width <= 1 − e.

    >>> import numpy as np
    >>> hat(0.5)(np.array([[0.0], [0.125], [1.0]])).ravel().tolist()
    [1.0, 0.75, 0.0]
    """
    if not width > 0:
        raise SpecError(f"the width of a hat must be positive, got {width}")
    row = list(direction)
    return two_step(
        [row, row, row], [width, 0.0, -width], [[1 / width, -2 / width, 1 / width]], [0.0]
    )


def window(inner: float, outer: float, direction: Sequence[float] = (1.0,)) -> ReluNet:
    """1 for |s| <= inner, 0 for |s| >= outer, linear between; four hidden units.

    Marks s = 0 among integers once s is known up to an error e, without loss: needs e <= inner and
    outer <= 1 − e.

    >>> import numpy as np
    >>> window(0.25, 0.75)(np.array([[0.125], [-0.5], [1.0]])).ravel().tolist()
    [1.0, 0.5, 0.0]
    """
    if not 0 <= inner < outer:
        raise SpecError(f"a window needs 0 <= inner < outer, got {inner} and {outer}")
    row, steep = list(direction), 1 / (outer - inner)
    return two_step(
        [row, row, row, row],
        [outer, inner, -inner, -outer],
        [[steep, -steep, -steep, steep]],
        [0.0],
    )
