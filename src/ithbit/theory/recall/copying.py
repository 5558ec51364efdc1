"""Copying by one layer: in real arithmetic it is possible for every family, at every length.

n symbols 0 … V - 1, then a separator and the string once more; each symbol is asked for at the
token before it, when all before are known. With the base b, the first power of two from 2 V on:

    embedding   symbol s at position k <= n       (s b^-k, 0)
                the separator                     (0, b^-1)
                s as the j-th repeated symbol     (-s b^-j, b^-(j+1))
    SSM         A = 1, B(x) = x, phi(x, h) = (h_1, x_2)     width 2; an RNN likewise
    output      v y_1 - v^2 / 2 y_2

    margin      b^-n (1/2 - (V - 1) / (b - 1)) or more: h_1 = sum_{k>j} s_k b^-k when symbol j + 1
                is asked for

*Attention*, softmax or linear, takes the mean over the tokens so far, at most 2 n, by scores of 0.
So the second coordinate at the j-th repeated symbol is b^-(j+1) - b^-j, and the means are in two
further coordinates: width 4, and the margin is divided by 2 n at most.

docs/recall.md has the proof. Every number is a float64 number as long as b^n is at most 2^1021, so
it is about the weights as they are stored; for larger n it is about the formulas.
"""

import numpy as np
from flint import fmpq

from ithbit.errors import SpecError, as_int, one_of
from ithbit.theory.architecture import FORMAL_FAMILIES
from ithbit.theory.certifiers.exact import Rational
from ithbit.theory.gadgets import affine, constant
from ithbit.theory.layers import LinearAttention, Rnn, SoftmaxAttention, Ssm, matrix
from ithbit.theory.recall.tasks import Recall
from ithbit.theory.recall.weights import RecallLayer, RecallSolution, checked_size, digits

EVERY_SIZE = "b^−n (1/2 − (V−1)/(b−1)), b the first power of two from 2V on"
_EXPONENT = 1021


def base(values: int) -> int:
    """The first power of two from 2 V on.

    >>> base(2), base(3)
    (4, 8)
    """
    return 1 << (2 * values - 1).bit_length()


def width_of(family: str) -> int:
    """2, or 4 for attention."""
    return 2 if family in ("ssm", "rnn") else 4


def copying(task: Recall, family: str, n: int) -> RecallSolution:
    """The weights for n symbols; margins shrink like b^-n.

    >>> from ithbit.theory.recall.tasks import recall
    >>> copying(recall("copy", 3), "ssm", 5).width
    2
    """
    one_of("unknown formal family", family, FORMAL_FAMILIES)
    n, b, width = as_int("n", n), base(task.values), width_of(family)
    checked_size(task, n, task.values + 1, 2 * n, width)
    if n > (longest := _EXPONENT // (b.bit_length() - 1)):
        raise SpecError(
            f"b^−n is a float64 number only up to n = {longest:,} for {task.values:,} values, got "
            f"n = {n:,}; `ithbit verdict` has what is proved at every size"
        )
    number, power = np.arange(task.values), float(b) ** -np.arange(n + 1)
    first = np.zeros((n, task.values, width))
    first[..., 0] = number * power[1:, None]
    again = np.zeros((n, task.values + 1, width))  # after the separator, token 0
    again[0, :, 1] = power[1]
    again[1:, 1:, 0] = -number * power[1:n, None]
    again[1:, :, 1] = (power[2:] - (power[1:n] if width == 4 else 0))[:, None]
    layers, output = (_layer(family, width),), digits(task.values, width, start=0)
    return RecallSolution(task, family, n, layers, matrix(first, 3), output, matrix(again, 3))


def _layer(family: str, width: int) -> RecallLayer:
    if width == 4:
        zero, keep = matrix(np.zeros((4, 4))), np.zeros((4, 4))
        keep[2, 0] = keep[3, 1] = 1
        kind = SoftmaxAttention if family.startswith("softmax") else LinearAttention
        read = affine(keep.T.tolist(), [0.0] * 4)
        return kind(family.endswith("causal"), zero, zero, matrix(keep), read)
    both = affine([[0, 0, 1, 0], [0, 1, 0, 0]], [0.0, 0.0])  # (h_1, x_2) of (x, h)
    if family == "ssm":
        one = affine([[1, 0], [0, 1]], [0.0, 0.0])
        return Ssm(constant([1, 0, 0, 1], 2), one, both, matrix([0, 0], 1))
    return Rnn(affine([[1, 0, 1, 0], [0, 1, 0, 1]], [0.0, 0.0]), both)


def copying_margin(task: Recall, family: str, n: int) -> Rational:
    """The margin of the proof."""
    b = base(task.values)
    bound = (fmpq(1, 2) - fmpq(task.values - 1, b - 1)) / fmpq(b) ** n
    return bound / (2 * n) if width_of(family) == 4 else bound
