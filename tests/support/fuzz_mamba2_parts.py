"""Single operations of the bounds for Mamba2, of both implementations, against balls of 300 bits.

In a whole model the looseness of one step hides that another is too tight. Here every operation
gets arguments of its own, and values inside them, chosen to make the result large, are mapped
exactly.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flint import arb, ctx

from ithbit.spec import ModelSpec
from ithbit.theory.trained_blocks import shapes
from ithbit.verification.checks import ball_arrays
from ithbit.verification.checks.ball_arrays import BallArray
from ithbit.verification.checks.mamba2_balls import TwoMamba2Layers, _norm
from ithbit.verification.proofs import boxes
from ithbit.verification.proofs.affine_forms import Form
from ithbit.verification.proofs.boxes import Box
from ithbit.verification.proofs.mamba2 import rms_norm
from ithbit.verification.proofs.mamba2_sums import LastSums, first_sums

PRECISION = 300
EPS = arb("0.00001")
Rng = np.random.Generator
Violated = Callable[[str], None]
HEADS = np.zeros(1, int)


def _radius(rng: Rng, *shape: int) -> np.ndarray:
    return rng.random(shape) * 10.0 ** rng.uniform(-6, 0.3) * rng.choice([0, 1, 1])


def _ball(rng: Rng, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-2, 1), _radius(rng, *shape)


def _inside(rng: Rng, c: float, r: float, at: float | None = None) -> Any:
    """A number in a ball, mostly at an end."""
    at = rng.choice([-1.0, 1.0, 1.0, rng.uniform(-1, 1)]) if at is None else at
    return arb(float(c)) + arb(float(r)) * arb(float(at))


def _leaves(c: Any, r: Any, true: Any) -> bool:
    return bool(np.isfinite([c, r]).all() and abs(true - arb(float(c))) > arb(float(r)))


def _silu(x: Any) -> Any:
    return x / (1 + (-x).exp())


def _softplus(x: Any) -> Any:
    return (1 + x.exp()).log()


def arithmetic(rng: Rng, violated: Violated) -> None:
    """Sums, products and inner products of boxes, and of the balls of the check."""
    k = int(rng.integers(1, 4))
    a, b = _ball(rng, k), _ball(rng, k)
    values = [[_inside(rng, c, r) for c, r in zip(*each, strict=True)] for each in (a, b)]
    x, y = values
    for name, made in (("boxes", Box), ("balls", BallArray)):
        first, second = made(*a), made(*b)
        total = boxes.plus(first, second) if made is Box else first + second
        product = boxes.times(first, second) if made is Box else first * second
        rows = [made(v.c[None], v.r[None]) for v in (first, second)]
        of_boxes = made is Box
        inner = boxes.products("ij,kj->ik", *rows, k) if of_boxes else rows[0] @ rows[1].T
        true = sum((v * w for v, w in zip(x, y, strict=True)), arb(0))
        wrong = _leaves(inner.c[0, 0], inner.r[0, 0], true)
        for j in range(k):
            wrong = wrong or _leaves(total.c[j], total.r[j], x[j] + y[j])
            wrong = wrong or _leaves(product.c[j], product.r[j], x[j] * y[j])
        if wrong:
            violated(f"arithmetic of {name}")


def functions(rng: Rng, violated: Violated) -> None:
    """SiLU, softplus and exp of intervals."""
    c = rng.choice([rng.normal(), rng.uniform(-45, 45), -1.28, -40, 40])
    r = float(_radius(rng, 1)[0])
    ends = np.array([c - r]), np.array([c + r])
    silu = boxes.silu(*ends)
    low, high = boxes.softplus(Box(np.array([c]), np.array([r])))
    ball = BallArray(np.array([c]), np.array([r]))
    balls = {name: ball_arrays.image(name, ball) for name in ("silu", "softplus")}
    for at in (-1.0, 1.0, rng.uniform(-1, 1), np.clip((-1.27846454 - c) / (r or 1), -1, 1)):
        x = _inside(rng, c, r * (1 - 1e-15), at)
        if _leaves(silu.c[0], silu.r[0], _silu(x)):
            violated("SiLU of boxes")
        if not (arb(low[0]) <= _softplus(x) <= arb(high[0])):
            violated("softplus of boxes")
        for name, function in (("silu", _silu), ("softplus", _softplus)):
            if _leaves(balls[name].c[0], balls[name].r[0], function(x)):
                violated(f"{name} of balls")
    minus = BallArray(np.array([-abs(c) - r]), np.array([r]))
    image = ball_arrays.image("exp", minus)
    if _leaves(image.c[0], image.r[0], _inside(rng, minus.c[0], r).exp()):
        violated("exp of balls")


def norms(rng: Rng, violated: Violated) -> None:
    """The norm of forms, and that of balls with its Jacobian by the mean value theorem."""
    d, k = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    size = 10.0 ** rng.uniform(-4, 0)
    c, G = rng.normal(size=d) * rng.choice([1e-3, 1, 10]), rng.normal(size=(d, k)) * size
    e = rng.random(d) * size * rng.choice([0, 0, 0.2])
    gain, spread = rng.normal(size=d), rng.choice([0, 0.3])
    eps = 1e-5 * 10.0 ** rng.uniform(-1, 2)
    given = Box(np.array([eps]), np.array([eps * spread]))
    form = rms_norm(Form(c[None], G[None], e[None]), gain, given)
    r = np.abs(G).sum(-1) * 1.000001
    ball = BallArray(c, r)
    at, J = _norm(BallArray(c, 0 * c))[0], _norm(ball)[1]
    for _ in range(6):
        signs = rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], k)
        x = [
            sum(
                (arb(float(g)) * arb(float(s)) for g, s in zip(row, signs, strict=True)),
                arb(float(v)),
            )
            for v, row in zip(c, G, strict=True)
        ]
        y = [_inside(rng, 0, w) + v for v, w in zip(x, e, strict=True)]
        own = _inside(rng, eps, eps * spread)
        scale = (sum((v * v for v in y), arb(0)) / d + own).rsqrt()
        for j in range(d):
            moved = (
                arb(float(g)) * arb(float(s)) for g, s in zip(form.G[0, j], signs, strict=False)
            )
            near = sum(moved, arb(float(form.c[0, j])))
            room = arb(float(form.e[0, j])) + sum(
                (abs(arb(float(g))) for g in form.G[0, j, k:]), arb(0)
            )
            if abs(y[j] * scale * arb(float(gain[j])) - near) > room:
                violated("norm of forms")
        scale = (sum((v * v for v in x), arb(0)) / d + EPS).rsqrt()
        for j in range(d):
            by = (BallArray(J.c[j, m], J.r[j, m]) for m in range(d))
            near = arb(float(at.c[j]), float(at.r[j]))
            for m, each in enumerate(by):
                near += arb(float(each.c), float(each.r)) * (x[m] - arb(float(c[m])))
            if not near.overlaps(x[j] * scale):
                violated("norm of balls")


def _largest(k: Any, dt: Any, rate: Any, bits: np.ndarray, size: int, sign: int) -> Any:
    """The largest sum for a string: k and dt as functions of place and window, the ends of dt."""
    total = arb(0)
    padded = np.concatenate([np.zeros(size, int), bits, [0]])
    for t in range(len(bits) + 2):
        own = padded[t : t + size]
        window = int(own @ (1 << np.arange(size)[::-1]))
        low, high = dt(t, window)
        steps = [arb(float(low)), arb(float(high)), (arb(float(low)) + arb(float(high))) / 2]
        options = [(-s * rate).exp() * total + s * k(t, window, window) * sign for s in steps]
        total = max(options, key=lambda ball: float(ball.mid()))
    return total


def _parts(rng: Rng, places: int, size: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Balls of what the sums of one channel are made of: steps by windows of two bits less."""
    fewer = 1 << (size - 2)
    low = np.exp(rng.normal(size=(places, fewer, 1)) - 1)
    width = low * rng.random((places, fewer, 1)) * rng.choice([0, 1e-3, 1])
    radius = _radius(rng, places, 1 << size, 1)
    zero = np.zeros((places, 1 << size, 2))
    return {
        "x": (rng.normal(size=(places, 1 << size, 1)) + rng.choice([-2, 0, 2]), radius),
        "B": (rng.normal(size=zero.shape) + 1, zero),
        "C": (rng.normal(size=zero.shape) + 1, zero),
        "dt": (low + width / 2, width / 2),
    }


def sums(rng: Rng, violated: Violated) -> None:
    """Sums over tokens, of both blocks and both implementations, for all strings."""
    n = int(rng.integers(1, 4))
    bits = np.where(rng.random(n) < 0.7, -1, rng.integers(0, 2, n))
    size = int(rng.choice([3, 5]))
    parts = _parts(rng, n + 2, size)
    (x, radius), (B, _), (C, _), (c, r) = (parts[name] for name in ("x", "B", "C", "dt"))
    if size == 3:  # exact, and steps by one bit
        radius, r = 0 * radius, 0 * r
    rate = np.array([np.exp(rng.normal())])
    spec = ModelSpec("lhi", "mamba2", n, 2, d_model=1, n_heads=1, d_state=2)
    model = TwoMamba2Layers(spec, {name: np.zeros(shape) for name, shape in shapes(spec).items()})
    model.p["rate.1"] = ball_arrays.point(rate)
    window = np.arange(1 << size)
    given = [BallArray(x[None, None], radius[None, None]), *(ball_arrays.point(v) for v in (B, C))]
    given.append(BallArray(c[:, window % c.shape[1]], r[:, window % c.shape[1]]))
    found = {}
    with np.errstate(all="ignore"):
        balls = model._sums(given, 1, 1, HEADS, bits.tolist())
        found["check"] = (
            balls.c[0, ::2, 0] - balls.r[0, ::2, 0],
            balls.c[0, ::2, 0] + balls.r[0, ::2, 0],
        )
        if size == 5:
            last = LastSums(
                ((c - r)[None], (c + r)[None]),
                rate,
                Box(C[None, -1, ::2], 0 * C[None, -1, ::2]),
                Box(B[None], 0 * B[None]),
                Box(x[None], radius[None]),
                bits[None],
            )
            for name, box in (
                ("last sums", last.of_channels(HEADS)),
                ("functions", last.of_functions(np.full((1, 16, 1, 1), -1.0), HEADS)),
            ):
                turn = -1 if name == "functions" else 1
                ends = (
                    turn * box.c[0, :, 0] - box.r[0, :, 0],
                    turn * box.c[0, :, 0] + box.r[0, :, 0],
                )
                found[name] = ends
    free = np.flatnonzero(bits < 0)
    for code in range(1 << len(free)):
        string = bits.copy()
        string[free] = code >> np.arange(len(free)) & 1
        tail = np.concatenate([np.zeros(size, int), string, [0]])[-size:]
        end = int(tail @ (1 << np.arange(size)[::-1]))
        for sign in (1, -1):

            def k(t: int, w: int, _: int, sign: int = sign, end: int = end) -> Any:
                score = sum(
                    (
                        arb(float(u)) * arb(float(v))
                        for u, v in zip(C[-1, end], B[t, w], strict=True)
                    ),
                    arb(0),
                )
                turn = 1 if float(score.mid()) * sign > 0 else -1
                return score * (arb(float(x[t, w, 0])) + turn * arb(float(radius[t, w, 0])))

            def dt(t: int, w: int) -> tuple[float, float]:
                own = w % c.shape[1]
                return c[t, own, 0] - r[t, own, 0], c[t, own, 0] + r[t, own, 0]

            true = _largest(k, dt, arb(float(rate[0])), string, size, sign) * sign
            # An end of dt is itself rounded: values just outside it are not meant.
            slack = arb(float(1e-14 * (r > 0).any())) * (1 + abs(true))
            for name, (low, high) in found.items():
                if true + slack < arb(low[end // 2]) or true - slack > arb(high[end // 2]):
                    violated(f"{name} of windows of {size} bits")


def _first(rng: Rng, violated: Violated) -> None:
    """Sums of the first block at every place, without rounding: within 1e-12."""
    n = int(rng.integers(1, 4))
    bits = np.where(rng.random(n) < 0.7, -1, rng.integers(0, 2, n))
    places = n + 2
    scores = rng.normal(size=(1, places, 8, places, 8))
    xd = rng.normal(size=(1, places, 2, places, 8, 1))
    decay = rng.random((1, places, 2, 1))
    low, high = first_sums(scores, xd, decay, bits[None])
    free = np.flatnonzero(bits < 0)
    least, most = np.full((places, 8), np.inf), np.full((places, 8), -np.inf)
    for code in range(1 << len(free)):
        string = bits.copy()
        string[free] = code >> np.arange(len(free)) & 1
        padded = np.concatenate([[0, 0, 0], string, [0]])
        window = [int(padded[t : t + 3] @ [4, 2, 1]) for t in range(places)]
        for t in range(places):
            total = 0.0
            for s in range(t + 1):
                value = scores[0, t, window[t], s, window[s]]
                value *= xd[0, t, window[t] & 1, s, window[s], 0]
                total = decay[0, s, window[s] & 1, 0] * total + value
            least[t, window[t]] = min(least[t, window[t]], total)
            most[t, window[t]] = max(most[t, window[t]], total)
    seen = np.isfinite(least)
    if np.abs(low[0, ..., 0] - least)[seen].max() > 1e-12:
        violated("least sums of the first block")
    if np.abs(high[0, ..., 0] - most)[seen].max() > 1e-12:
        violated("greatest sums of the first block")


def run_parts(count: int, seed: int) -> Iterator[str]:
    """What is violated by that many draws of every operation."""
    found: list[str] = []
    for number in range(count):
        rng = np.random.default_rng([seed, number, 2])
        with ctx.workprec(PRECISION), np.errstate(all="ignore"):
            for operation in (arithmetic, functions, norms, sums, _first):
                operation(rng, found.append)
        yield from found
        found.clear()
