"""Single operations of the second implementation of two layers against balls, as `fuzz_forms.py`
does for the bounds of the search."""

from collections.abc import Callable

import numpy as np
from flint import arb, ctx
from tests.support import fuzz_forms as forms
from tests.support import fuzz_ratio_ends
from tests.support.exact import PRECISION
from tests.support.fuzz_forms import TRIES, Rng, Vector, Violated

from ithbit.verification.checks import affine_sets
from ithbit.verification.checks.affine_sets import TokenSet
from ithbit.verification.checks.two_layers_balls import TwoAttentionLayers
from ithbit.verification.proofs.affine_forms import Form


def _set(x: Form) -> TokenSet:
    """The form's first node as the first token, before one that is unknown."""
    return TokenSet(x.c, x.G, x.e)


def _form(y: TokenSet) -> Form:
    return Form(y.c, y.G, y.e)


def _holds(y: TokenSet, point: Vector, signs: np.ndarray) -> bool:
    """Whether a point may lie in the set of one token, whose first symbols have these values."""
    return not any(forms._leaves(_form(y), (j,), v, signs) for j, v in enumerate(point))


def vectors(rng: Rng, violated: Violated) -> None:
    """What is done to the vector of one token."""
    d, k = int(rng.integers(2, 5)), int(rng.integers(0, 4))
    x, (gain, bias) = forms._form(rng, k, d), rng.normal(size=(2, d))
    eps = float(rng.choice([1e-12, 1e-5]))
    weight, shift = forms._numbers(rng, 3, d), forms._numbers(rng, 3)
    own = _set(x)
    a, b, r = affine_sets.gelu(own)
    units = TokenSet(a * own.c + b, a[..., None] * own.G, np.abs(a) * own.e * (1 + 1e-15) + r)
    weights, low, high = affine_sets.exps(own)
    operations: dict[str, tuple[TokenSet, Callable[[Vector], Vector]]] = {
        "norm": (
            affine_sets.normed(own, gain, bias, eps),
            lambda v: forms._normal(v, gain, bias, eps),
        ),
        "GELU": (units, lambda v: [forms._gelu(y) for y in v]),
        "linear": (
            affine_sets.linear(own, weight, shift),
            lambda v: forms._mapped(v, weight, shift),
        ),
        "exp": (weights, lambda v: [y.exp() for y in v]),
        "features": (affine_sets.features(own), lambda v: [forms._exp_or_line(y) for y in v]),
        "sum": (affine_sets.plus(own, own), lambda v: [y + y for y in v]),
        "symbols": (own.with_symbols(), lambda v: v),
        "fewer symbols": (own.without(k // 2), lambda v: v),
    }
    parts = [affine_sets.cut(own[[0]].with_symbols(), 3)[[part]] for part in range(3)]
    for _ in range(TRIES):
        signs = forms._signs(rng, k)
        point = [forms._inside(x, (j,), signs, rng) for j in range(d)]
        if not any(_holds(part, point, signs) for part in parts):
            violated("parts of a set")
        for name, (y, function) in operations.items():
            for j, true in enumerate(function(point)):
                if forms._leaves(_form(y), (j,), true, signs):
                    violated(f"{name} of a set")
                    break
        for j, value in enumerate(point):
            least, most = (arb(float(each[0, j])) for each in (low, high))
            if value.exp() < least or value.exp() > most:
                violated("ends of exp of a set")


def products(rng: Rng, violated: Violated) -> None:
    """Products, and sums over the tokens that bits choose."""
    d, k = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    a, b = forms._form(rng, k, 1, d), forms._form(rng, k, 1, d)
    dot = affine_sets.dot(_set(a), _set(b))
    free, rest = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    k2, count = free + int(rng.integers(0, 2)), 2 * free + rest
    x = forms._form(rng, k2, count, 1, d)
    slots = TokenSet(x.c[0], x.G[0].copy(), x.e[0])
    chosen, _ = affine_sets.chosen(slots, free, affine_sets.off_by(count))
    for _ in range(TRIES):
        signs = forms._signs(rng, k)
        pairs = [[forms._inside(each, (0, j), signs, rng) for j in range(d)] for each in (a, b)]
        true = sum((p * q for p, q in zip(*pairs, strict=True)), arb(0))
        if forms._leaves(_form(dot), (0,), true, signs):
            violated("dot of sets")
        signs = forms._signs(rng, k2)
        signs[:free] = rng.choice([-1.0, 1.0], free)
        tokens = [j + free * (signs[j] > 0) for j in range(free)] + list(range(2 * free, count))
        for j in range(d):
            parts = [forms._inside(x, (int(t), 0, j), signs, rng) for t in tokens]
            y = Form(chosen.c[None], chosen.G[None], chosen.e[None])
            if forms._leaves(y, (0, j), sum(parts, arb(0)), signs):
                violated("what bits choose of a set")


def _model(rng: Rng, heads: int, size: int) -> TwoAttentionLayers:
    """One without weights: what it does of attention depends on none."""
    model = object.__new__(TwoAttentionLayers)
    model.n, model.heads, model.softmax = 3, heads, bool(rng.integers(2))
    model.extra = 0.0 if model.softmax else 1e-6
    model.p = {"head.weight": np.zeros((1, heads * size))}
    return model


def first_ratios(rng: Rng, violated: Violated) -> None:
    """Attention over known tokens: three bits of which two are free, and a query."""
    size = int(rng.integers(1, 3))
    model = _model(rng, 1, size)
    w = 10.0 ** (rng.uniform(-1, 1, (9, 9)) * rng.choice([3, 12])) * (rng.random((9, 9)) < 0.9)
    w[:, [2, 5, 6]] += 1e-3
    v = forms._numbers(rng, 9, size)
    model.w, model.v = [w], [v]
    free, fixed = np.array([0, 1]), [2 + 3 * int(rng.integers(2)), 6]
    slots = np.array([0, 1, 3, 4, *fixed])
    found = model._first(slots, free, np.array(fixed))
    for _ in range(TRIES):
        signs = rng.choice([-1.0, 1.0], 2)
        bits = [j + 3 * int(signs[j] > 0) for j in free]
        for s, slot in enumerate(slots.tolist()):
            # A free bit's slot sees its own bit as it is.
            seen = [slot if slot % 3 == j and slot < 6 else bits[j] for j in free] + fixed
            weights = [arb(w[slot, t]) for t in seen]
            for c in range(size):
                parts = [a * arb(v[t, c]) for a, t in zip(weights, seen, strict=True)]
                true = sum(parts, arb(0)) / (sum(weights, arb(0)) + arb(model.extra))
                each = Form(found.c[s][None], found.G[s][None], found.e[s][None])
                if forms._leaves(each, (c,), true, signs):
                    violated("first ratio of sets")


def second_ratios(rng: Rng, violated: Violated) -> None:
    """Attention of the last token over tokens that are sets."""
    size, free, rest = int(rng.integers(1, 3)), int(rng.integers(1, 3)), 1
    count = 2 * free + rest
    model = _model(rng, 1, size)
    q = forms._form(rng, free, 1, 1, size)
    k, v = (forms._form(rng, free, count, 1, size) for _ in range(2))
    q, k = (Form(each.c / 3, each.G / 3, each.e / 3) for each in (q, k))
    sets = [TokenSet(each.c[0], each.G[0].copy(), each.e[0]) for each in (q, k, v)]
    found, _ = model._second(*sets, free)
    y = Form(found.c, found.G, found.e)
    for _ in range(TRIES):
        signs = rng.choice([-1.0, 1.0], free)
        tokens = [j + free * int(signs[j] > 0) for j in range(free)]
        tokens += range(2 * free, count)
        asked = [forms._inside(q, (0, 0, c), signs, rng) for c in range(size)]
        weights = []
        for t in tokens:
            key = [forms._inside(k, (t, 0, c), signs, rng) for c in range(size)]
            if model.softmax:
                dot = sum((a * b for a, b in zip(asked, key, strict=True)), arb(0))
                weights.append((dot * arb(size).rsqrt()).exp())
            else:
                pairs = zip(
                    map(forms._exp_or_line, asked), map(forms._exp_or_line, key), strict=True
                )
                weights.append(sum((a * b for a, b in pairs), arb(0)))
        for c in range(size):
            values = [forms._inside(v, (t, 0, c), signs, rng) for t in tokens]
            true = sum((a * b for a, b in zip(weights, values, strict=True)), arb(0))
            true = true / (sum(weights, arb(0)) + arb(model.extra))
            if forms._leaves(y, (c,), true, signs):
                violated("second ratio of sets")


def compare_operations(seed: int, number: int, violations: list[str]) -> None:
    """Compare every operation with the truth, on sets that follow from seed and number."""
    rng = np.random.default_rng([seed, number, 2])

    def violated(what: str) -> None:
        violations.append(f"sets {number} of seed {seed}: {what}")

    with ctx.workprec(PRECISION), np.errstate(all="ignore"):
        for operation in (vectors, products, first_ratios, second_ratios, fuzz_ratio_ends.compare):
            operation(rng, violated)
