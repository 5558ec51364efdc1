"""Square roots removed by squaring: the tests that decide signs after one or two normalisations.

With r = sqrt(v) > 0. Everything is a polynomial in the fingerprint; no variable is implicit.
"""

import math

from tests.support.decisions.system import Scalar, System, Term, Vector, dot, total, value_of


def mean(values: Vector) -> Scalar:
    return total(values) * (1 / len(values))


def centred(values: Vector) -> list[Scalar]:
    middle = mean(values)
    return [u - middle for u in values]


def mean_square(values: Vector) -> Scalar:
    return mean([u * u for u in values])


def one_root(s: System, A: Scalar, B: Scalar, v: Term) -> float:
    """The tests that decide the sign of A + B r; its value."""
    s.test(A)
    s.test(B)
    s.test(A * A - B * B * v)
    return value_of(A) + value_of(B) * math.sqrt(v.value)


def two_norms(
    s: System,
    T1: Vector,
    T0: Vector,
    v: Term,
    weight: Vector,
    offset: float,
    eps: float,
    centre: bool,
) -> float:
    """The tests that decide weight . norm(T1 / r + T0) + offset, and the value of that sum.

    norm(t) = t / sqrt(mean(t^2) + eps), of centred t for LayerNorm. T0 is constant.
    """
    if centre:
        T1, T0 = centred(T1), centred(T0)
    b, c = dot(T1, weight), dot(T0, weight)
    # W = (mean(t^2) + eps) v = q2 + q1 r + q0 v
    q2, q1 = mean_square(T1), 2.0 * mean([x * y for x, y in zip(T1, T0, strict=True)])
    q0 = mean_square(T0) + eps
    X = b * b + c * c * v - offset**2 * (q2 + q0 * v)
    Y = 2.0 * c * b - offset**2 * q1
    s.test(b)
    s.test(b * b - c * c * v)
    one_root(s, X, Y, v)
    r = math.sqrt(v.value)
    W = value_of(q2) + value_of(q1) * r + q0 * v.value
    return (value_of(b) + c * r) / math.sqrt(W) + offset
