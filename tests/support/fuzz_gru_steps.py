"""Single steps of GRUs on random sets of states, against the same step of points in them.

In *coarse* arithmetic all that the bounds compute, but for lines close to tanh, is rounded to 24
bits, and their unit of rounding is as large: an error term for rounding that is left out shows in
what float64 computes.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import numpy as np

from ithbit.verification.checks import gru_balls as check
from ithbit.verification.proofs import gru

_UNIT = 2.0**-24
_NEAR = 1e-12  # of float64, in which points are computed
Rng = np.random.Generator


class Coarse(np.ndarray):
    """An array of float64 whose every result is rounded to 24 bits."""

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        inputs = [np.asarray(x) if isinstance(x, Coarse) else x for x in inputs]
        if out is not None:
            options["out"] = tuple(x.view(np.ndarray) for x in out)
        return coarse(getattr(ufunc, method)(*inputs, **options))

    def __array_function__(self, function, types, args, options):
        found = super().__array_function__(function, types, args, options)
        return found.view(Coarse) if type(found) is np.ndarray else found


def coarse(x):
    """An array rounded to 24 bits, and so are all results with it."""
    x = np.asarray(x)
    if x.dtype != np.float64:
        return x
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2**24), exponent - 24).view(Coarse)


@contextmanager
def coarse_arithmetic() -> Iterator[None]:
    """The unit of rounding of 24 bits in bounds and check, and tokens rounded to it."""
    floats, near = gru.floats, check._floats
    sigmoid, tanh = gru.sigmoid_line, gru.tanh_line

    def rounded(balls):
        c, _ = near(balls)
        c = np.array(coarse(c))
        return c, np.array(
            [check._above(abs(x - y)) for x, y in zip(balls, c.tolist(), strict=True)]
        )

    unit = 2 * _UNIT
    with (
        patch.object(gru, "slack", lambda terms: (terms + 16) * unit),
        patch.object(gru, "_UP", 1 + 32 * unit),
        patch.object(gru, "floats", lambda balls: np.array(coarse(floats(balls)))),
        patch.object(gru, "sigmoid_line", lambda *ends: sigmoid(*map(np.asarray, ends))),
        patch.object(gru, "tanh_line", lambda *ends: tanh(*map(np.asarray, ends))),
        patch.object(check, "_U", _UNIT),
        patch.object(check, "_UP", 1 + 64 * _UNIT),
        patch.object(check, "_floats", rounded),
    ):
        yield


def _points(rng: Rng, count: int, symbols: int, columns: int) -> np.ndarray:
    """Values of symbols (point, symbol): signs, zeros and fractions; for bits signs."""
    signs = rng.choice([-1.0, 1.0], (count, symbols))
    eps = np.where(rng.random((count, symbols)) < 0.3, rng.uniform(-1, 1, signs.shape), signs)
    eps = np.where(rng.random((count, symbols)) < 0.2, 0.0, eps)
    eps[:, ::columns] = signs[:, ::columns]
    return eps


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(x / 2)) / 2


def _state(h: np.ndarray, gates: np.ndarray, U: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """A layer's next state (point, dim), for input gates (point, 3 dim)."""
    r, z, n = np.split(gates, 3, -1)
    own = np.split(h @ U.T + bias, 3, -1)
    r, z = _sigmoid(r + own[0]), _sigmoid(z + own[1])
    n = np.tanh(n + r * own[2])
    return n + z * (h - n)


def compare_steps(seed: int, number: int, violations: list[str], is_coarse: bool) -> None:
    """One step of the search and of the check on a random set."""
    rng = np.random.default_rng([seed, number, is_coarse])
    d, columns, groups = (int(rng.integers(*ends)) for ends in ((1, 4), (1, 4), (1, 4)))
    symbols = columns * groups
    size = 10.0 ** rng.uniform(-1, 1)
    U, bias = rng.normal(size=(3 * d, d)) * size, rng.normal(size=3 * d) * size
    half, base = rng.normal(size=3 * d) * size, rng.normal(size=3 * d) * size
    if rng.random() < 0.3:  # sums that cancel
        base = base - bias * rng.choice([1, 1e4, 1e8])
        bias = bias * rng.choice([1, 1e4, 1e8])
    G = rng.normal(size=(d, symbols)) * 10.0 ** rng.uniform(-8, 0) / symbols
    G[:, -columns] = 0  # of the bit of this step, which is the last one
    G /= np.maximum(np.abs(G).sum(1), 1)[:, None]
    c = rng.uniform(-1, 1, d) * (1 - np.abs(G).sum(1))  # states are in [-1, 1]
    if is_coarse:
        arrays = (U, bias, half, base, c, G)
        U, bias, half, base, c, G = (np.array(coarse(x)) for x in arrays)
    eps = _points(rng, 200, symbols, columns)
    h, moved = c + eps @ G.T, eps[:, -columns : symbols - columns + 1]
    true = _state(h, base + moved * half, U, bias)
    wrap = coarse if is_coarse else np.asarray
    with coarse_arithmetic() if is_coarse else nullcontext(), np.errstate(all="ignore"):
        row = np.zeros((1, symbols))
        row[0, -columns] = 1
        params = {"hh.weight": wrap(U), "hh.bias": wrap(bias)}
        w = gru._weights(params, "", wrap(half[:, None]), wrap(base[None]), np.zeros((1, 3 * d)))
        y = gru._Set(wrap(np.append(c, 0.0)[None]), wrap(np.concatenate([G, row])[None]))
        step = gru._step(w, y, columns)
        x = np.zeros((3 * d, symbols))
        x[:, -columns] = half
        given = check.Zonotope(wrap(base), wrap(x), np.zeros(3 * d))
        state = check.Zonotope(wrap(c), wrap(G), np.zeros(d))
        one = check._next(wrap(U), wrap(bias), given, state, columns)
    size = 1 + np.abs(base).max() + np.abs(bias).max()
    for name, centre, moves, off in (
        ("search", step.c[0], step.G[0, :, :symbols], np.diagonal(step.G[0, :, symbols:])),
        ("check", one.c, one.G, one.e),
    ):
        far = np.abs(true - np.asarray(centre) - eps @ np.asarray(moves).T) - np.asarray(off)
        if not (far <= _NEAR * size).all():
            how = "coarse " if is_coarse else ""
            violations.append(
                f"{how}step {number} of seed {seed}, {name}: {np.max(far):.3g} outside"
            )
