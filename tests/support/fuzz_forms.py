"""Single operations of the bounds against balls: what `fuzz.py` compares for whole models.

In a whole model, the looseness of one step hides that another is too tight. Here every operation
gets forms of its own, points of them are mapped in exact arithmetic, and no point may leave the
form that the operation gives. A second node of the batch, of NaN or huge numbers, must not matter.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx
from tests.support.exact import PRECISION

from ithbit.verification.checks import one_layer_balls
from ithbit.verification.proofs import affine_forms, attention, single_inputs, token_parts
from ithbit.verification.proofs.affine_forms import Form
from ithbit.verification.proofs.bands import bands_of

TRIES = 10  # points of a form
Rng = np.random.Generator
Vector = list[Any]  # of arb
Violated = Callable[[str], None]


def _numbers(rng: Rng, *shape: int) -> np.ndarray:
    """Numbers of one size, sometimes with a common part that is much larger."""
    common = 10.0 ** rng.uniform(0, 7) if rng.random() < 0.3 else 0.0
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1.5) + common


def _form(rng: Rng, symbols: int, *shape: int) -> Form:
    """A random form of one node, before one that is unknown."""
    size = 10.0 ** rng.uniform(-6, 1)
    c, G = _numbers(rng, *shape), rng.normal(size=(*shape, symbols)) * size
    e = rng.random(shape) * size * rng.choice([0, 0, 1e-6, 0.3])
    unknown = rng.choice([np.nan, 1e200, 0])
    return Form(*(np.stack([x, np.full_like(x, unknown)]) for x in (c, G, e)))


def _signs(rng: Rng, *shape: int) -> np.ndarray:
    """Values of symbols: corners, or anywhere between them."""
    eps = rng.uniform(-1, 1, shape)
    return np.sign(eps) if rng.random() < 0.5 else eps


def _inside(x: Form, at: tuple[int, ...], eps: np.ndarray, rng: Rng) -> Any:
    """The value of a coordinate of the first node for values of the symbols, exactly."""
    own = float(_signs(rng)) * arb(float(x.e[(0, *at)]))
    return _sum(x, at, eps) + own


def _sum(x: Form, at: tuple[int, ...], eps: np.ndarray) -> Any:
    G = x.G[(0, *at)][: len(eps)]
    terms = (arb(g) * arb(s) for g, s in zip(G.tolist(), eps.tolist(), strict=True))
    return sum(terms, arb(float(x.c[(0, *at)])))


def _leaves(y: Form, at: tuple[int, ...], true: Any, eps: np.ndarray) -> bool:
    """Whether a value certainly lies outside a form, whose first symbols have these values."""
    rest = sum((arb(abs(g)) for g in y.G[(0, *at)][len(eps) :].tolist()), arb(0))
    room = rest + arb(float(y.e[(0, *at)]))
    return bool(abs(true - _sum(y, at, eps)) > room)


def _gelu(x: Any) -> Any:
    return x * (1 + (x * arb(2).rsqrt()).erf()) / 2


def _normal(x: Vector, gain: np.ndarray, bias: np.ndarray, eps: float) -> Vector:
    mean = sum(x, arb(0)) / len(x)
    x = [v - mean for v in x]
    scale = (sum((v * v for v in x), arb(0)) / len(x) + arb(str(eps))).rsqrt()
    return [v * scale * arb(g) + arb(b) for v, g, b in zip(x, gain, bias, strict=True)]


def _mapped(x: Vector, weight: np.ndarray, bias: np.ndarray) -> Vector:
    y = arb_mat(weight.tolist()) * arb_mat([[v] for v in x])
    return [y[r, 0] + arb(b) for r, b in enumerate(bias.tolist())]


def _exp_or_line(x: Any) -> Any:
    return x + 1 if x > 0 else x.exp()


def vectors(rng: Rng, violated: Violated) -> None:
    """Norms, GELU, exp, features and linear maps of one form."""
    d, k = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    x, (gain, bias) = _form(rng, k, d), rng.normal(size=(2, d))
    eps = float(rng.choice([1e-12, 1e-5]))
    weight, shift = _numbers(rng, 3, d), _numbers(rng, 3)
    operations: dict[str, tuple[Form, Callable[[Vector], Vector]]] = {
        "norm": (
            affine_forms.layer_norm(x, gain, bias, eps),
            lambda v: _normal(v, gain, bias, eps),
        ),
        "GELU": (affine_forms.gelu(x), lambda v: [_gelu(y) for y in v]),
        "linear": (affine_forms.linear(x, weight, shift), lambda v: _mapped(v, weight, shift)),
        "exp": (attention.convex(x, False), lambda v: [y.exp() for y in v]),
        "features": (attention.convex(x, True), lambda v: [_exp_or_line(y) for y in v]),
        "sum": (affine_forms.add(x, x), lambda v: [y + y for y in v]),
    }
    for _ in range(TRIES):
        signs = _signs(rng, k)
        point = [_inside(x, (j,), signs, rng) for j in range(d)]
        for name, (y, function) in operations.items():
            for j, true in enumerate(function(point)):
                if _leaves(y, (j,), true, signs):
                    violated(f"{name} of a form")
                    break


def products(rng: Rng, violated: Violated) -> None:
    """Products of forms, and sums over the slots that bits choose."""
    d, k = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    own = int(rng.integers(0, 2))
    a, b = _form(rng, k + own, 1, d), _form(rng, k + own, 1, d)
    scalar = _form(rng, k + own, 1)
    value = Form(b.c, b.G[..., :k], b.e)
    inner, scaled = attention.dot(a, b, k), attention.product(scalar, value)
    n = k
    slots = _form(rng, k, 2 * n + 1, 1)
    for j in range(n):  # a bit's slot sees that bit as it is
        slots.G[:, [j, j + n], :, j] = 0
    every, free = np.full((2, n), -1), np.arange(n)
    bands = bands_of(np.zeros((0, n)), np.zeros((2, 0, 2)), every, free)
    total = attention.chosen(slots, n, free, bands)
    for _ in range(TRIES):
        signs, mine, other = _signs(rng, k), _signs(rng, own), _signs(rng, own)
        first = np.concatenate([signs, mine])
        left = [_inside(a, (0, j), first, rng) for j in range(d)]
        right = [_inside(b, (0, j), np.concatenate([signs, other]), rng) for j in range(d)]
        true = sum((x * y for x, y in zip(left, right, strict=True)), arb(0))
        if _leaves(inner, (0,), true, first):
            violated("product of vector forms")
        weight = _inside(scalar, (0,), first, rng)
        for j in range(d):
            if _leaves(scaled, (0, j), weight * _inside(value, (0, j), signs, rng), first):
                violated("product with a scalar form")
        bits = rng.choice([-1.0, 1.0], n)
        chosen = [j + n * int(bits[j] > 0) for j in range(n)] + [2 * n]
        true = sum((_inside(slots, (t, 0), bits, rng) for t in chosen), arb(0))
        if _leaves(total, (0,), true, bits):
            violated("sum over chosen slots")


def ratios(rng: Rng, violated: Violated) -> None:
    """Ratios of sums over known tokens."""
    n, d = int(rng.integers(1, 4)), 2
    weight = np.exp(rng.normal(size=(2, 2, n)) * 10.0 ** rng.uniform(-3, 2.6))
    value, rest = _numbers(rng, 2, 2, n, d), np.exp(rng.normal(size=2))
    if rng.random() < 0.2:  # all weights where float64 begins to lose numbers
        weight, rest = np.exp(np.log(weight) % 60) * 1e-300, rest * 1e-280
    rest *= rng.choice([0, 1e-300, 1e-30, 1])
    more = _numbers(rng, 2, d)
    weight[:, 1] = rng.choice([0, 1, np.inf])
    pairs, fixed = weight[..., None] * value, rest[:, None] * more
    sums = (weight[0], weight[1]), (pairs[0], pairs[1]), rest, fixed, np.abs(fixed)
    bands = None
    if rng.random() < 0.7:  # no functionals, so the exact range may replace the affine part
        bands = bands_of(np.zeros((0, n)), np.zeros((2, 0, 2)), np.full((2, n), -1), np.arange(n))
    found = attention.separable_ratio(*sums, np.arange(n), bands)
    G = np.concatenate([found.G.swapaxes(-1, -2), found.own()], -1)
    y = Form(found.m, G, found.e)
    for _ in range(TRIES):
        bits = rng.choice([-1.0, 1.0], n)
        at = [(int(s > 0), 0, j) for j, s in enumerate(bits)]
        weights = [arb(weight[t]) for t in at] + [arb(rest[0])]
        below = sum(weights, arb(0))
        for c in range(d if below > 0 else 0):
            values = [arb(value[(*t, c)]) for t in at] + [arb(more[0, c])]
            true = sum((w * v for w, v in zip(weights, values, strict=True)), arb(0)) / below
            if _leaves(y, (c,), true, bits):
                violated("ratio of sums")


def parts(rng: Rng, violated: Violated) -> None:
    """Sets cut into parts: every point is in one of them."""
    d, symbols = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    x = _form(rng, symbols, d)
    cut, count = token_parts.parts_of(x), token_parts.PARTS
    for _ in range(TRIES):
        eps = _signs(rng, symbols)
        true = [_inside(x, (c,), eps, rng) for c in range(d)]
        some = range(count)  # of the first node
        if not any(
            not any(_leaves(cut[[part]], (c,), true[c], eps) for c in range(d)) for part in some
        ):
            violated("parts of a set")


def rows(rng: Rng, violated: Violated) -> None:
    """Norms, linear maps and GELU of single rows with a Euclidean error."""
    d = int(rng.integers(2, 5))
    x, (gain, bias) = _numbers(rng, 2, d), rng.normal(size=(2, d))
    eps = float(rng.choice([1e-12, 1e-5]))
    e = float(10.0 ** rng.uniform(-8, 0) * rng.choice([0, 0, 1]))
    size = float(np.linalg.norm(x, axis=-1).max()) * (1 + 1e-12) + e
    given, weight, shift = (
        single_inputs.TokenRows(x, e, size),
        _numbers(rng, 3, d),
        _numbers(rng, 3),
    )
    operations: dict[str, tuple[single_inputs.TokenRows, Callable[[Vector], Vector]]] = {
        "norm": (
            single_inputs.layer_norm(given, gain, bias, eps),
            lambda v: _normal(v, gain, bias, eps),
        ),
        "GELU": (single_inputs.gelu(given), lambda v: [_gelu(y) for y in v]),
        "linear": (
            single_inputs.linear(given, single_inputs.mapping(weight, shift)),
            lambda v: _mapped(v, weight, shift),
        ),
    }
    for way in (*np.eye(d), *-np.eye(d), *rng.normal(size=(4, d))):
        moved = [arb(v) * e / arb(float(np.linalg.norm(way)) * (1 + 1e-12)) for v in way.tolist()]
        for t in range(2):
            point = [arb(v) + m for v, m in zip(x[t].tolist(), moved, strict=True)]
            for name, (y, function) in operations.items():
                true = function(point)
                far = sum(((v - arb(w)) ** 2 for v, w in zip(true, y.x[t], strict=True)), arb(0))
                if far.sqrt() > arb(y.e):
                    violated(f"{name} of rows")


def averages(rng: Rng, violated: Violated) -> None:
    """Averages of values, with weights and values that are off."""
    count, d = int(rng.integers(2, 5)), 2
    weight, value = (
        np.exp(rng.normal(size=count) * 10.0 ** rng.uniform(-1, 1)),
        rng.normal(size=(count, d)),
    )
    off, e = 10.0 ** rng.uniform(-9, -0.5), 10.0 ** rng.uniform(-9, 0) * rng.choice([0, 1])
    size, total = (
        float(np.linalg.norm(value, axis=-1).max()) * (1 + 1e-12),
        weight.sum(keepdims=True),
    )
    found = single_inputs.averaged(
        (weight @ value / total)[None], total, off + 1e-12, e + 1e-12, size
    )
    for _ in range(TRIES):
        factors = [1 + arb(off) * int(s) for s in rng.choice([-1, 1], count)]
        weights = [f * arb(w) for f, w in zip(factors, weight.tolist(), strict=True)]
        moved = [arb(e) * arb(s) for s in ("0.6", "-0.8")]
        far = arb(0)
        for c in range(d):
            terms = zip(weights, value[:, c].tolist(), strict=True)
            true = sum((w * (arb(v) + moved[c]) for w, v in terms), arb(0)) / sum(weights, arb(0))
            far += (true - arb(found.x[0, c])) ** 2
        if far.sqrt() > arb(found.e):
            violated("averages of rows")


def checked(rng: Rng, violated: Violated) -> None:
    """Norms and GELU of the second implementation, whose forms are matrices of balls."""
    d, k = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    x, (gain, bias) = _form(rng, k, d), rng.normal(size=(2, d))
    x = Form(x.c, x.G, 0 * x.e)
    given = arb_mat([[c, *g] for c, g in zip(x.c[0].tolist(), x.G[0].tolist(), strict=True)])
    with ctx.workprec(one_layer_balls.PRECISION):
        balls = [[arb(v) for v in each.tolist()] for each in (gain, bias)]
        normal, hidden = one_layer_balls._normed(given, *balls), one_layer_balls._gelu(given)
    operations = {
        "norm": (normal, lambda v: _normal(v, gain, bias, 1e-12)),
        "GELU": (hidden, lambda v: [_gelu(y) for y in v]),
    }
    for _ in range(TRIES):
        signs = _signs(rng, k)
        point = [_sum(x, (j,), signs) for j in range(d)]
        for name, (y, function) in operations.items():
            for j, true in enumerate(function(point)):
                near = sum((y[j, s + 1] * arb(signs[s]) for s in range(k)), y[j, 0])
                rest = sum((abs(y[j, s]) for s in range(k + 1, y.ncols())), arb(0))
                if abs(true - near) > rest:
                    violated(f"{name} of the check")


def compare_operations(seed: int, number: int, violations: list[str]) -> None:
    """Compare every operation with the truth, on forms that follow from seed and number."""
    rng = np.random.default_rng([seed, number, 1])

    def violated(what: str) -> None:
        violations.append(f"forms {number} of seed {seed}: {what}")

    with ctx.workprec(PRECISION), np.errstate(all="ignore"):
        for operation in (vectors, products, ratios, parts, rows, averages, checked):
            operation(rng, violated)
