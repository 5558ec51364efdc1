"""Decisions of the blocks that are trained: nn.GRU, pre-LN linear attention, BERT.

Weights are those of `ithbit.models`, one seed, as plain lists. The order of the operations is the
models' own; `keep` marks the values that become implicit variables.

    d width   H heads
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.decisions.roots import centred, mean_square, one_root, two_norms
from tests.support.decisions.system import (
    Scalar,
    System,
    Term,
    Vector,
    add,
    affine,
    dot,
    matvec,
    value_of,
)

Weights = dict[str, Any]
LINEAR_EPS, BERT_EPS, DENOMINATOR_EPS = 1e-5, 1e-12, 1e-6


@dataclass(frozen=True)
class Model:
    """A trained model at one seed: blocks, the last normalisation, the head."""

    blocks: list[Weights]
    head: Sequence[float]
    bias: float
    heads: int
    leave: Sequence[float] = ()
    activation: str = "gelu"


@dataclass(frozen=True)
class Signs:
    """The outcomes of earlier stages: those of the values themselves, or one for all."""

    relu: bool | None = None
    feature: bool | None = None

    def on(self, value: Scalar) -> bool:
        """Whether a ReLU is on."""
        return value_of(value) > 0 if self.relu is None else self.relu

    def linear(self, value: Scalar) -> bool:
        """Whether ELU+1 or ReLU+1 is x + 1 here."""
        return value_of(value) > 0 if self.feature is None else self.feature


EVERY_OUTCOME = (Signs(), Signs(False, False), Signs(True, False), Signs(True, True))


def gru_rhi(s: System, model: Model, x: Vector, states: Sequence[Sequence[float]]) -> Scalar:
    """nn.GRU, one test. x is the index's embedding, the fingerprint every layer's state."""
    d = len(x)
    for w, state in zip(model.blocks, states, strict=True):
        h = s.fingerprint(state)
        of_x, of_h = (
            affine(w["ih.weight"], w["ih.bias"], x),
            affine(w["hh.weight"], w["hh.bias"], h),
        )
        er, ez = (
            [s.exp(-1.0 * (a + b)) for a, b in zip(of_x[part], of_h[part], strict=True)]
            for part in (slice(d), slice(d, 2 * d))
        )
        # a = W x + (U h) / (1 + e^-r)
        inner = [
            s.keep(a * (1.0 + e) + b, 1.0 + e)
            for a, b, e in zip(of_x[2 * d :], of_h[2 * d :], er, strict=True)
        ]
        n = []
        for a in inner:
            E = s.exp(2.0 * a)
            n.append(s.keep(E - 1.0, E + 1.0))
        x = [s.keep(a * e + old, 1.0 + e) for a, e, old in zip(n, ez, h, strict=True)]
    logit = dot(x, model.head) + model.bias
    s.test(logit)
    return logit


def split(x: Vector, heads: int) -> list[Vector]:
    size = len(x) // heads
    return [x[j * size : (j + 1) * size] for j in range(heads)]


def layer_norm(s: System, x: Vector, w: Weights, name: str, eps: float) -> list[Scalar]:
    inner = centred(x)
    rho = s.rsqrt(mean_square(inner) + eps)
    return [
        u * rho * g + b
        for u, g, b in zip(inner, w[f"{name}.weight"], w[f"{name}.bias"], strict=True)
    ]


def feed_forward(s: System, x: Vector, w: Weights, activation: str, signs: Signs) -> list[Scalar]:
    inner = affine(w["up.weight"], w["up.bias"], x)
    if activation == "relu":
        active = [u if signs.on(u) else 0.0 for u in inner]
    else:
        active = [s.gelu(s.keep(u)) for u in inner]
    return affine(w["down.weight"], w["down.bias"], active)


def block_lhi(
    s: System,
    model: Model,
    x: Sequence[float],
    index: tuple[Sequence[float], Sequence[float]],
    rest: tuple[Sequence[float], Sequence[float]],
    bert: bool,
) -> Scalar:
    """One block with GELU at the end token: a = (alpha + beta) / (gamma + rho) in each head.

    index = (alpha, gamma) is the index token's part of the sums, rest = (beta, rho) the others'.
    """
    (w,), H = model.blocks, model.heads
    beta, rho = s.fingerprint(rest[0]), s.squared(rest[1])
    inverse = [s.inverse(a + b) for a, b in zip(rho, index[1], strict=True)]
    num = add(beta, index[0])
    a = [u * f for part, f in zip(split(num, H), inverse, strict=True) for u in part]
    bias = w["out.bias"] if bert else [0.0] * len(x)
    t = [s.keep(u) for u in add(x, affine(w["out.weight"], bias, a))]
    if bert:
        t = layer_norm(s, t, w, "norm1", BERT_EPS)
        t = [s.keep(u) for u in add(t, feed_forward(s, t, w, "gelu", Signs()))]
        t = layer_norm(s, t, w, "norm2", BERT_EPS)
    else:
        normal = layer_norm(s, t, w, "norm1" if bert else "norm2", LINEAR_EPS)
        t = add(t, feed_forward(s, normal, w, "gelu", Signs()))
    logit = dot(t, model.head) + model.bias
    s.test(logit)
    return logit


def relu_block(
    s: System,
    model: Model,
    x: Sequence[float],
    num: Vector,
    dens: list[Scalar],
    bert: bool,
    stage: str,
    signs: Signs,
) -> float:
    """One block with ReLU, stage "ReLU" or "readout", after a = num / den in each head.

    Everything is multiplied by the product of the denominators. Roots are removed by squaring.
    """
    (w, *_), H = model.blocks, model.heads
    others = [_product([v for k, v in enumerate(dens) if k != h]) for h in range(H)]
    P = _product(dens)
    bias = w["out.bias"] if bert else [0.0] * len(x)
    mixed = matvec(
        w["out.weight"],
        [u * f for part, f in zip(split(num, H), others, strict=True) for u in part],
    )
    t = [a + P * (u + b) for a, u, b in zip(mixed, x, bias, strict=True)]  # the sum times P
    name, eps = ("norm1", BERT_EPS) if bert else ("norm2", LINEAR_EPS)
    c = centred(t)
    v = mean_square(c) + eps * (P * P)
    gain, offset = w[f"{name}.weight"], w[f"{name}.bias"]
    scaled = [u * g for u, g in zip(c, gain, strict=True)]
    A = matvec(w["up.weight"], scaled)  # preactivation times r is A + B r
    B = affine(w["up.weight"], w["up.bias"], offset)
    if stage == "ReLU":
        for a, b in zip(A, B, strict=True):
            one_root(s, a, b, v)
        return math.nan
    r = math.sqrt(v.value)
    on = [signs.on(a.value + b * r) for a, b in zip(A, B, strict=True)]
    ff1 = matvec(w["down.weight"], [a if z else 0.0 for a, z in zip(A, on, strict=True)])
    ff0 = affine(
        w["down.weight"], w["down.bias"], [b if z else 0.0 for b, z in zip(B, on, strict=True)]
    )
    if bert:
        weight = [h * g for h, g in zip(model.head, w["norm2.weight"], strict=True)]
        shift = dot(model.head, w["norm2.bias"]) + model.bias
        T1, T0 = add(scaled, ff1), add(offset, ff0)
        return two_norms(s, T1, T0, v, weight, shift, BERT_EPS, centre=True)
    first = P * dot(ff1, model.head)
    second = dot(t, model.head) + P * (dot(ff0, model.head) + model.bias)
    return one_root(s, first, second, v) / (value_of(P) * r)


def _product(values: list[Scalar]) -> Scalar:
    found = 1.0
    for value in values:
        found = value * found
    return found


def relu_lhi(s, model, x, index, rest, bert, stage, signs=Signs()) -> float:
    """`block_lhi` with ReLU."""
    beta, rho = s.fingerprint(rest[0]), s.fingerprint(rest[1])
    dens = [a + b for a, b in zip(rho, index[1], strict=True)]
    return relu_block(s, model, x, add(beta, index[0]), dens, bert, stage, signs)


def sums(kept: Vector, H: int) -> list[tuple[list[Vector], Vector]]:
    """(rows of S, z) of each head, from the layout of `completions.formal.linear_sums`."""
    found = []
    for part in split(kept, H):
        size = next(k for k in range(1, len(part)) if k * (k + 1) == len(part))
        found.append(([part[r * size : (r + 1) * size] for r in range(size)], part[size * size :]))
    return found


def features(s: System, x: Vector, signs: Signs, kind: str = "elu") -> list[Scalar]:
    """ELU+1 or ReLU+1; which branch is an outcome of an earlier stage."""
    found: list[Scalar] = []
    for u in x:
        if not isinstance(u, Term):
            found.append(u + 1.0 if u > 0 else math.exp(u) if kind == "elu" else 1.0)
        elif signs.linear(u):
            found.append(u + 1.0)
        else:
            found.append(s.exp(u) if kind == "elu" else 1.0)
    return found


def linear_parts(kept, key, query, value, H, eps) -> tuple[list[Scalar], list[Scalar]]:
    """Numerators and denominators of linear attention, head after head."""
    num: list[Scalar] = []
    dens: list[Scalar] = []
    parts = (split(u, H) for u in (key, query, value))
    for (S, z), k, q, v in zip(kept, *parts, strict=True):
        own = dot(k, q)
        num += [dot(row, q) + own * u for row, u in zip(S, v, strict=True)]
        dens.append(dot(z, q) + own + eps)
    return num, dens


def linear_state(s: System, values: Sequence[float], H: int) -> list[tuple[list[Vector], Vector]]:
    """S as parameters, z >= 0 as squares of parameters."""
    return [
        ([s.fingerprint(row) for row in S], s.squared([max(u, 0.0) for u in z]))
        for S, z in sums(values, H)
    ]


def pre_ln_rhi(
    s: System,
    model: Model,
    x: Vector,
    states: Sequence[Sequence[float]],
    stage: tuple[int, str],
    signs: Signs = Signs(),
) -> Scalar:
    """Pre-LN linear attention up to (layer, "signs"), (layer, "ReLU") or (L, "readout")."""
    H, d = model.heads, len(x)
    if model.activation == "relu" and (stage == (1, "ReLU") or len(model.blocks) == 1):
        (w, *_) = model.blocks
        normal = layer_norm(s, x, w, "norm1", LINEAR_EPS)
        q, k, v = split(matvec(w["qkv.weight"], normal), 3)
        kept = [
            ([s.fingerprint(row) for row in S], s.fingerprint(z)) for S, z in sums(states[0], H)
        ]
        num, dens = linear_parts(
            kept, features(s, k, signs), features(s, q, signs), v, H, DENOMINATOR_EPS
        )
        return relu_block(s, model, x, num, dens, False, stage[1], signs)
    for layer, (w, state) in enumerate(zip(model.blocks, states, strict=False), start=1):
        normal = layer_norm(s, x, w, "norm1", LINEAR_EPS)
        q, k, v = split([s.keep(u) for u in matvec(w["qkv.weight"], normal)], 3)
        if stage == (layer, "signs"):
            for u in (*q, *k):
                s.test(u)
            return 0.0
        kept = linear_state(s, state, H)
        num, dens = linear_parts(
            kept, features(s, k, signs), features(s, q, signs), v, H, DENOMINATOR_EPS
        )
        inverse = [s.inverse(den) for den in dens]
        a = [u * f for part, f in zip(split(num, H), inverse, strict=True) for u in part]
        x = [s.keep(u) for u in add(x, matvec(w["out.weight"], a))]
        normal = layer_norm(s, x, w, "norm2", LINEAR_EPS)
        if stage == (layer, "ReLU"):
            for u in affine(w["up.weight"], w["up.bias"], normal):
                s.test(u)
            return 0.0
        x = [s.keep(u) for u in add(x, feed_forward(s, normal, w, model.activation, signs))]
    logit = dot(x, model.head) + model.bias
    s.test(logit)
    assert len(x) == d
    return logit
