"""Tokens before the first mixing, as arb balls: what the first block computes from each one alone.

Real arithmetic on the stored weights: the features (i-1)/n, ((i-1)/n)² and the positions t/(L-1)
are exact rationals, as `tasks/tokens.py` and `models/positions.py` define them, and the epsilons of
norms are the decimal numbers 10^-12 and 10^-5. Rows are bit 0 at each place, bit 1 at each place,
each query, and for LHI the end, as in the token table.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flint import arb, arb_mat, fmpq

from ithbit.families import FAMILIES
from ithbit.layouts import LAYOUTS
from ithbit.spec import ModelSpec
from ithbit.theory.layers import FloatArray

PRECISION = 160  # bits
EPS = {kind: LAYOUTS[kind].norm_eps for kind in ("softmax", "linear")}  # of the norms
Balls = Any  # flint.arb_mat, which has no type stubs
Params = Mapping[str, FloatArray]


def exact(weight: FloatArray) -> Balls:
    """A matrix of floats, exactly; a vector becomes one row."""
    return arb_mat(np.atleast_2d(weight).tolist())


def embedded(params: Params, task: str, n: int) -> Balls:
    """The tokens with their polynomial positions, row by row."""
    length = n + (1 if task == "rhi" else 2)
    rows = []
    first = 0 if task == "rhi" else 1
    for bit in (0, 1):
        rows += [([1, 0, 0, bit, 0, 0], first + j) for j in range(n)]
    for j in range(n):
        part = fmpq(j, n)
        rows.append(([0, 1, 0, 0, part, part * part], n if task == "rhi" else 0))
    if task == "lhi":
        rows.append(([0, 0, 1, 0, 0, 0], n + 1))
    places = [fmpq(t, max(length - 1, 1)) for _, t in rows]
    own = arb_mat([features for features, _ in rows]) * exact(params["embed"]).transpose()
    powers = arb_mat([[p, p * p] for p in places])
    return own + powers * exact(params["positions.polynomial"]).transpose()


def normed(rows: Balls, gain: FloatArray, bias: FloatArray, eps: float) -> Balls:
    """LayerNorm of every row."""
    gains, biases = ([arb(float(x)) for x in each] for each in (gain, bias))

    def one(row: list[Any]) -> list[Any]:
        d = len(row)
        mean = sum(row, arb(0)) / d
        centred = [x - mean for x in row]
        scale = (sum((x * x for x in centred), arb(0)) / d + arb(str(eps))).rsqrt()
        return [x * scale * g + b for x, g, b in zip(centred, gains, biases, strict=True)]

    return arb_mat([one(row) for row in rows.tolist()])


def mapped(rows: Balls, weight: FloatArray, bias: FloatArray | None = None) -> Balls:
    """weight x + bias for every row x."""
    out = rows * exact(weight).transpose()
    if bias is None:
        return out
    ones = arb_mat(rows.nrows(), 1, [arb(1)] * rows.nrows())
    return out + ones * exact(bias)


def part(balls: Balls, rows: Iterable[int] = (), columns: range | None = None) -> Balls:
    """Some rows and columns of a matrix, or all of them."""
    rows, columns = rows or range(balls.nrows()), columns or range(balls.ncols())
    return arb_mat([[balls[i, j] for j in columns] for i in rows])


def token_qkv_balls(params: Params, spec: ModelSpec) -> tuple[Balls, Balls, Balls, Balls]:
    """The tokens that the first block adds to, and its queries, keys and values for them; for
    linear attention, the features of queries and keys."""
    d, kind = spec.d_model, FAMILIES[spec.family].kind
    softmax = kind == "softmax"
    rows = embedded(params, spec.task, spec.n_bits)
    if softmax:
        rows = mapped(rows, np.eye(d), params["enter.type"])
    name = "enter.norm" if softmax else "blocks.0.norm1"
    inner = normed(rows, params[f"{name}.weight"], params[f"{name}.bias"], EPS[kind])
    qkv = mapped(inner, params["blocks.0.qkv.weight"], params.get("blocks.0.qkv.bias"))
    q, k, v = (part(qkv, columns=range(a * d, (a + 1) * d)) for a in range(3))
    if softmax:
        return inner, q, k, v
    return rows, _features(q), _features(k), v


def _features(rows: Balls) -> Balls:
    """ELU + 1."""
    return arb_mat(
        [
            [x + 1 if x > 0 else x.exp() if x <= 0 else x.exp().union(x + 1) for x in row]
            for row in rows.tolist()
        ]
    )


def weighed(q: Balls, k: Balls, spec: ModelSpec, seen: Mapping[int, Sequence[int]]) -> FloatArray:
    """The weights (query head token) of the tokens that some queries see, for each query up to a
    common factor: e^s or, for linear attention, products of features."""
    size, softmax = spec.d_head, FAMILIES[spec.family].kind == "softmax"
    heads, scale = [], arb(size).rsqrt()
    for h in range(spec.n_heads):
        at = range(h * size, (h + 1) * size)
        products = part(q, seen, at) * part(k, columns=at).transpose()
        rows = [[products[r, s] for s in row] for r, row in enumerate(seen.values())]
        if softmax:
            scores = [[x * scale for x in row] for row in rows]
            tops = [arb(max(float(x.mid()) for x in row)) for row in scores]
            if not all(top.is_finite() for top in tops):
                raise ArithmeticError("the scores are too large for a float")
            rows = [[(x - top).exp() for x in row] for row, top in zip(scores, tops, strict=True)]
        heads.append([relative_floats(row) for row in rows])
    return np.array(heads).swapaxes(0, 1)


ENTRY = 1e-24  # absolute error of a float of `floats`, besides its rounding
_LARGEST = 1e40  # float of `floats`, so that products with what underflow hides are below `TINY`


def floats(balls: Balls) -> FloatArray:
    """The midpoints, rounded: off by at most a relative 2^-52 plus an absolute `ENTRY`."""
    flat = [x for row in balls.tolist() for x in row]
    if not all(float(x.rad()) <= ENTRY / 2 for x in flat):
        raise ArithmeticError("the weights are too large for the precision of the balls")
    found = np.array([float(x.mid()) for x in flat]).reshape(balls.nrows(), balls.ncols())
    if not (np.abs(found) <= _LARGEST).all():
        raise ArithmeticError("the weights are too large for the error terms of underflow")
    return found


def relative_floats(balls: list[Any]) -> FloatArray:
    """The same for positive balls: off by at most a relative 2^-52, except for underflow."""
    if not all(x.rel_accuracy_bits() >= 60 for x in balls):
        raise ArithmeticError("the scores are too large for the precision of the balls")
    found = np.array([float(x.mid()) for x in balls])
    if not (found < np.inf).all():
        raise ArithmeticError("the weights of attention are too large for a float")
    return found
