"""Decisions of the paper's layers, from the programs of `completions.formal`.

A stage is named as in `ithbit.theory.bounds.stages`; a program stops at its tests. What an earlier
stage decided, which ReLUs are on and which branch a feature takes, comes from `Signs`.

    K, Q, V matrices   net, N1, N2, phi MLPs with one hidden layer or none
"""

from collections.abc import Sequence
from typing import Any

from tests.support.completions.formal import LinearLayer, Mlp, RnnLayer, SsmLayer
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
from tests.support.decisions.trained import Signs, features, linear_parts, linear_state, split, sums

Readout = tuple[Sequence[float], float]


def hidden(net: Mlp, x: Vector) -> list[Scalar]:
    """The preactivations of an MLP, none if it is affine."""
    return affine(net.weights[0], net.biases[0], x) if len(net.weights) > 1 else []


def finished(net: Mlp, x: Vector, signs: Signs) -> list[Scalar]:
    """The MLP, given which ReLUs are on."""
    if len(net.weights) > 1:
        x = [u if signs.on(u) else 0.0 for u in hidden(net, x)]
    return affine(net.weights[-1], net.biases[-1], x)


def answer(s: System, readout: Readout, y: Vector) -> Scalar:
    logit = dot(y, readout[0]) + readout[1]
    s.test(logit)
    return logit


def tested(s: System, values: Vector) -> float:
    for value in values:
        s.test(value)
    return 0.0


def recurrent_rhi(
    s: System,
    layers: Sequence[Any],
    readout: Readout,
    x: Vector,
    states: Sequence[Sequence[float]],
    stage: str,
    signs: Signs,
) -> Scalar:
    """RNN and SSM: polynomials in the states, once the ReLUs are decided."""
    for k, (layer, state) in enumerate(zip(layers, states, strict=True), start=1):
        old = s.fingerprint(state)
        if isinstance(layer, RnnLayer):
            if stage == f"layer {k}, N1":
                return tested(s, hidden(layer.N1, [*x, *old]))
            h, net, name = finished(layer.N1, [*x, *old], signs), layer.N2, "N2"
        elif isinstance(layer, SsmLayer):
            h, net, name = add(matvec(layer.A, old), matvec(layer.B, x)), layer.phi, "phi"
        else:
            rows = [affine(a, bias, x) for a, bias in zip(layer.A, layer.A_bias, strict=True)]
            moved = [dot(old, row) for row in rows]
            h, net, name = add(moved, affine(layer.B, layer.B_bias, x)), layer.phi, "phi"
        if stage == f"layer {k}, {name}":
            return tested(s, hidden(net, [*x, *h]))
        x = finished(net, [*x, *h], signs)
    return answer(s, readout, x)


def linear_elu_rhi(
    s: System,
    layers: Sequence[LinearLayer],
    readout: Readout,
    x: Vector,
    states: Sequence[Sequence[float]],
    stage: str,
    signs: Signs,
) -> Scalar:
    """Linear attention with ELU+1, a stage from layer 2 on: exponentials and implicit variables."""
    at = len(layers) if stage == "readout" else int(stage.split()[1].rstrip(","))
    for k, (layer, state) in enumerate(zip(layers[:at], states, strict=False), start=1):
        H = layer.heads
        keys, queries = matvec(layer.K, x), matvec(layer.Q, x)
        if stage == f"layer {k}, feature signs":
            return tested(s, [*queries, *keys])
        key, query = features(s, keys, signs), features(s, queries, signs)
        kept = linear_state(s, state, H)
        num, dens = linear_parts(kept, key, query, matvec(layer.V, x), H, 0.0)
        last = k == at
        if last and H == 1:
            # The denominator multiplies the tests. It is positive at every true fingerprint.
            (den,) = dens
            t = [u * den + v for u, v in zip(x, num, strict=True)]
            pre = _affine_over(layer.net, 0, t, den) if len(layer.net.weights) > 1 else []
            if stage == f"layer {k}, hidden":
                return tested(s, pre)
            if pre:
                t = [u if signs.on(u) else 0.0 * den for u in pre]
            y = _affine_over(layer.net, -1, t, den)
            logit = dot(y, readout[0]) + readout[1] * den
            s.test(logit)
            return logit.value / den.value
        inverse = [s.inverse(den) for den in dens]
        a = [u * f for part, f in zip(split(num, H), inverse, strict=True) for u in part]
        if stage == f"layer {k}, hidden":
            return tested(s, hidden(layer.net, add(a, x)))
        x = finished(layer.net, add(a, x), signs)
        if not last:
            x = [s.keep(u) for u in x]
    return answer(s, readout, x)


def _affine_over(net: Mlp, which: int, x: Vector, den: Scalar) -> list[Scalar]:
    """An affine map of x / den, times den."""
    rows = matvec(net.weights[which], x)
    return [u + den * b for u, b in zip(rows, net.biases[which], strict=True)]


def linear_polynomial_rhi(
    s: System,
    layers: Sequence[LinearLayer],
    readout: Readout,
    x: Vector,
    states: Sequence[Sequence[float]],
    stage: str,
    signs: Signs,
) -> Scalar:
    """Linear attention by quotients of polynomials x = X / D: ReLU+1, or one layer of any kind."""
    at = len(layers) if stage == "readout" else int(stage.split()[1].rstrip(","))
    X: list[Scalar] = list(x)
    D: Scalar = 1.0
    for k, (layer, state) in enumerate(zip(layers[:at], states, strict=False), start=1):
        H = layer.heads
        keys, queries = matvec(layer.K, X), matvec(layer.Q, X)
        if stage == f"layer {k}, feature signs":
            return tested(s, [*queries, *keys])
        if k == 1:
            key, query = (features(s, u, signs, layer.feature) for u in (keys, queries))
        else:  # phi times D
            key, query = (
                [D + u if signs.linear(u) else D for u in each] for each in (keys, queries)
            )
        kept = [([s.fingerprint(row) for row in S], s.fingerprint(z)) for S, z in sums(state, H)]
        num: list[Scalar] = []
        dens: list[Scalar] = []
        parts = (split(u, H) for u in (key, query, matvec(layer.V, X)))
        for (S, z), phi_k, phi_q, v in zip(kept, *parts, strict=True):
            own = dot(phi_k, phi_q)
            num += [dot(row, phi_q) * D * D + own * u for row, u in zip(S, v, strict=True)]
            dens.append(dot(z, phi_q) * D + own)
        # x + num / (D dens) over the common denominator
        others = [_product([den for j, den in enumerate(dens) if j != h]) for h in range(H)]
        a = [u * f for part, f in zip(split(num, H), others, strict=True) for u in part]
        every = _product(dens)
        X, D = [every * u + v for u, v in zip(X, a, strict=True)], every * D
        if len(layer.net.weights) > 1:
            X = _affine_over(layer.net, 0, X, D)
            if stage == f"layer {k}, hidden":
                return tested(s, X)
            X = [u if signs.on(u) else 0.0 * D for u in X]
        X = _affine_over(layer.net, -1, X, D)
    logit = dot(X, readout[0]) + D * readout[1]
    s.test(logit)
    return value_of(logit) / value_of(D)


def linear_affine_rhi(
    s: System, layer: LinearLayer, readout: Readout, x: Sequence[float], state: Sequence[float]
) -> Scalar:
    """One layer without hidden units: of S only u^T S matters, d numbers."""
    H = layer.heads
    ((weight,), (bias,)) = layer.net.weights, layer.net.biases
    u = [dot(readout[0], column) for column in zip(*weight, strict=True)]
    offset = dot(readout[0], bias) + readout[1]
    key, query = (features(s, matvec(m, x), Signs(), layer.feature) for m in (layer.K, layer.Q))
    value = matvec(layer.V, x)
    nums: list[Scalar] = []
    dens: list[Scalar] = []
    parts = (split(each, H) for each in (u, key, query, value))
    for (S, z), part, k, q, v in zip(sums(state, H), *parts, strict=True):
        row = s.fingerprint([dot(part, column) for column in zip(*S, strict=True)])
        own = dot(k, q)
        nums.append(dot(row, q) + own * dot(part, v))
        dens.append(dot(s.fingerprint(z), q) + own)
    return _quotients(s, nums, dens, dot(u, x) + offset)


def attention_lhi(
    s: System,
    net: Mlp,
    readout: Readout,
    x: Sequence[float],
    index: tuple[Sequence[float], Sequence[float]],
    rest: tuple[Sequence[float], Sequence[float]],
    stage: str,
    signs: Signs,
) -> Scalar:
    """One layer at the end token: a = (alpha + beta) / (gamma + rho) in each head."""
    H = len(rest[1])
    if len(net.weights) == 1:
        u = [dot(readout[0], column) for column in zip(*net.weights[0], strict=True)]
        parts = [split(each, H) for each in (u, index[0], rest[0])]
        beta = s.fingerprint([dot(a, b) for a, b in zip(parts[0], parts[2], strict=True)])
        nums = [b + dot(p, a) for b, p, a in zip(beta, parts[0], parts[1], strict=True)]
        dens = add(s.fingerprint(rest[1]), index[1])
        return _quotients(s, nums, dens, dot(u, x) + dot(readout[0], net.biases[0]) + readout[1])
    num = add(s.fingerprint(rest[0]), index[0])
    dens = add(s.fingerprint(rest[1]), index[1])
    others = [_product([den for j, den in enumerate(dens) if j != h]) for h in range(H)]
    D = _product(dens)
    a = [u * f for part, f in zip(split(num, H), others, strict=True) for u in part]
    pre = _affine_over(net, 0, [D * u + v for u, v in zip(x, a, strict=True)], D)
    if stage == "hidden":
        return tested(s, pre)
    y = _affine_over(net, -1, [u if signs.on(u) else 0.0 * D for u in pre], D)
    logit = dot(y, readout[0]) + D * readout[1]
    s.test(logit)
    return logit.value / D.value


def ssm_lhi(
    s: System,
    layer: Any,
    readout: Readout,
    x: Sequence[float],
    start: Sequence[float],
    rest: tuple[Sequence[Sequence[float]], Sequence[float]],
    stage: str,
    signs: Signs,
) -> Scalar:
    """One SSM layer at the end token: h = A(bits) start(index) + b(bits)."""
    A, b = rest
    if len(layer.phi.weights) == 1:
        d = len(b)
        u = [dot(readout[0], column) for column in zip(*layer.phi.weights[0], strict=True)]
        row = s.fingerprint([dot(u[d:], column) for column in zip(*A, strict=True)])
        (own,) = s.fingerprint([dot(u[d:], b)])
        offset = dot(u[:d], x) + dot(readout[0], layer.phi.biases[0]) + readout[1]
        logit = dot(row, start) + own + offset
        s.test(logit)
        return logit
    kept = s.fingerprint(b)
    if isinstance(layer, SsmLayer):
        h = add(kept, matvec(A, start))
    else:
        h = add([dot(s.fingerprint(row), start) for row in A], kept)
    if stage == "hidden":
        return tested(s, hidden(layer.phi, [*x, *h]))
    return answer(s, readout, finished(layer.phi, [*x, *h], signs))


def _product(values: Sequence[Scalar]) -> Scalar:
    found: Scalar = 1.0
    for value in values:
        found = value * found
    return found


def _quotients(s: System, nums: list[Term], dens: list[Term], offset: float) -> float:
    """The test of sum num / den + offset, times the denominators; the value of the sum."""
    every = _product(dens)
    others = [_product([den for j, den in enumerate(dens) if j != h]) for h in range(len(dens))]
    logit = dot(nums, others) + every * offset
    s.test(logit)
    return logit.value / every.value
