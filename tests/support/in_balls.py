"""The margin of any solution on one input, in arb balls: what certifiers are compared with.

Written from the definitions, with no code of the certifiers; plain lists of balls, one input at a
time. `prec` bits; the true margin lies in the ball.
"""

from typing import Any

import numpy as np
from flint import arb, ctx

from ithbit.families import FAMILIES
from ithbit.theory.layers import Gru as GruLayer
from ithbit.theory.layers import LinearAttention, ReluNet, Rnn, SoftmaxAttention, Ssm
from ithbit.theory.solution import AnySolution, Solution, TrainedSolution

Ball = Any
Row = list[Ball]


def margin(solution: AnySolution, bits: Any, index: int, prec: int = 400) -> Ball:
    """The margin on one input as a ball of real numbers; not finite if too few bits were used."""
    with ctx.workprec(prec):
        if isinstance(solution, TrainedSolution):
            logit = _trained(solution, [int(b) for b in bits], int(index))
            return logit if bits[index - 1] else -logit
        zero, one = _formal(solution, [int(b) for b in bits], int(index))
        return one - zero if bits[index - 1] else zero - one


def _row(values: Any) -> Row:
    return [arb(float(v)) for v in values]


def _dot(a: Row, b: Row) -> Ball:
    # `==` is true of balls only if both are the same number, `!=` only if they do not overlap.
    pairs = ((x, y) for x, y in zip(a, b, strict=True) if not (x == 0 or y == 0))
    return sum((x * y for x, y in pairs), arb(0))


def _times(weight: Any, x: Row) -> Row:
    return [_dot(_row(row), x) if row.any() else arb(0) for row in weight]


def _plus(*rows: Row) -> Row:
    return [sum(column, arb(0)) for column in zip(*rows, strict=True)]


def _relu(x: Ball) -> Ball:
    return x.max(arb(0))


def _sigmoid(x: Ball) -> Ball:
    return 1 / (1 + (-x).exp())


def _elu1(x: Ball) -> Ball:
    if bool(x > 0):
        return 1 + x
    return x.exp() if bool(x <= 0) else x.exp().union(1 + x)


def _relu1(x: Ball) -> Ball:
    return 1 + _relu(x)


def _average(weights: Row, values: list[Row], extra: Ball) -> Row:
    total = sum(weights, arb(0)) + extra
    return [_dot(weights, list(column)) / total for column in zip(*values, strict=True)]


def _softmax(scores: Row) -> Row:
    top = max(scores, key=lambda s: float(s.mid()))
    return [(s - top).exp() for s in scores]


# The formal layers.


def _net(net: ReluNet, x: Row) -> Row:
    for depth, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        x = [_relu(v) for v in x] if depth else x
        x = _plus(_times(weight, x), _row(bias))
    return x


def _formal(solution: Solution, bits: list[int], index: int) -> Row:
    table = solution.embedding
    rows = [_row(table.bit[k, b]) for k, b in enumerate(bits)]
    query = _row(table.index[index - 1])
    x = [*rows, query] if table.end is None else [query, *rows, _row(table.end)]
    for layer in solution.layers:
        x = _formal_layer(layer, x)
    return _times(solution.output, x[-1])


def _formal_layer(layer: Any, x: list[Row]) -> list[Row]:
    if isinstance(layer, SoftmaxAttention | LinearAttention):
        out = []
        keys, values = [_times(layer.K, t) for t in x], [_times(layer.V, t) for t in x]
        for k, own in enumerate(x):
            seen = range(k + 1) if layer.causal else range(len(x))
            query = _times(layer.Q, own)
            if isinstance(layer, SoftmaxAttention):
                weights = _softmax([_dot(keys[j], query) for j in seen])
            else:
                phi = _elu1 if layer.feature == "elu+1" else _relu1
                turned = [phi(q) for q in query]
                weights = [_dot([phi(c) for c in keys[j]], turned) for j in seen]
            a = _average(weights, [values[j] for j in seen], arb(0))
            out.append(_net(layer.net, _plus(own, a)))
        return out
    if isinstance(layer, Ssm):
        h, out = _row(layer.h0), []
        for t in x:
            d = len(h)
            A = _net(layer.A, t)
            h = _plus([_dot(A[r * d : (r + 1) * d], h) for r in range(d)], _net(layer.B, t))
            out.append(_net(layer.phi, [*t, *h]))
        return out
    if isinstance(layer, Rnn):
        h, out = [arb(0)] * layer.d_in, []
        for t in x:
            h = _net(layer.N1, [*t, *h])
            out.append(_net(layer.N2, [*t, *h]))
        return out
    assert isinstance(layer, GruLayer)
    return _gru(layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh, x)


def _gru(W: Any, U: Any, b: Any, c: Any, x: list[Row]) -> list[Row]:
    d = U.shape[1]
    h, out = [arb(0)] * d, []
    for t in x:
        given, recalled = _plus(_times(W, t), _row(b)), _plus(_times(U, h), _row(c))
        r = [_sigmoid(given[j] + recalled[j]) for j in range(d)]
        z = [_sigmoid(given[d + j] + recalled[d + j]) for j in range(d)]
        new = [(given[2 * d + j] + r[j] * recalled[2 * d + j]).tanh() for j in range(d)]
        h = [(1 - z[j]) * new[j] + z[j] * h[j] for j in range(d)]
        out.append(h)
    return out


# The trained blocks.


def _trained(solution: TrainedSolution, bits: list[int], index: int) -> Ball:
    w, spec, n = solution.weights, solution.spec, solution.n_bits
    last = solution.n_tokens - 1
    features = [[1, 0, 0, bit, arb(0), arb(0)] for bit in bits]
    f = arb(index - 1) / n
    query = [0, 1, 0, 0, f, f * f]
    tokens = [*features, query] if spec.task == "rhi" else [query, *features, [0, 0, 1, 0, 0, 0]]
    x = []
    for k, feature in enumerate(tokens):
        p = arb(k) / last
        place = _times(w["positions.polynomial"], [p, p * p])
        x.append(_plus(_times(w["embed"], [arb(v) for v in feature]), place))
    kind = FAMILIES[spec.family].kind
    if kind == "softmax":
        x = [_norm(_plus(t, _row(w["enter.type"])), w, "enter.norm", 1e-12) for t in x]
    for layer in range(spec.n_layers):
        prefix = f"blocks.{layer}."
        own = {name[len(prefix) :]: v for name, v in w.items() if name.startswith(prefix)}
        x = {"softmax": _bert, "linear": _linear, "gru": _gru_block, "mamba2": _mamba2}[kind](
            own, spec, x
        )
    if kind == "mamba2":
        x = [_rms(t, w["leave.norm.weight"]) for t in x]
    return _dot(_row(w["head.weight"][0]), x[-1]) + arb(float(w["head.bias"][0]))


def _norm(x: Row, w: Any, name: str, eps: float) -> Row:
    mean = sum(x, arb(0)) / len(x)
    centred = [v - mean for v in x]
    scale = (sum((v * v for v in centred), arb(0)) / len(x) + arb(eps)).sqrt()
    gains, shifts = _row(w[f"{name}.weight"]), _row(w[f"{name}.bias"])
    return [v / scale * g + s for v, g, s in zip(centred, gains, shifts, strict=True)]


def _rms(x: Row, weight: Any) -> Row:
    scale = (sum((v * v for v in x), arb(0)) / len(x) + arb(1e-5)).sqrt()
    return [v / scale * g for v, g in zip(x, _row(weight), strict=True)]


def _gelu(x: Ball) -> Ball:
    return x * (1 + (x / arb(2).sqrt()).erf()) / 2


def _feed_forward(x: Row, w: Any) -> Row:
    hidden = _plus(_times(w["up.weight"], x), _row(w["up.bias"]))
    return _plus(_times(w["down.weight"], [_gelu(v) for v in hidden]), _row(w["down.bias"]))


def _attend(spec: Any, qkv: list[Row], weigh: Any, extra: Ball) -> list[Row]:
    d, size = spec.d_model, spec.d_head
    causal, out = FAMILIES[spec.family].causal, []
    for k, own in enumerate(qkv):
        seen = qkv[: k + 1] if causal else qkv
        mixed: Row = []
        for head in range(spec.n_heads):
            at = slice(head * size, (head + 1) * size)
            q = own[:d][at]
            weights = weigh(q, [t[d : 2 * d][at] for t in seen])
            mixed += _average(weights, [t[2 * d :][at] for t in seen], extra)
        out.append(mixed)
    return out


def _bert(w: Any, spec: Any, x: list[Row]) -> list[Row]:
    def weigh(q: Row, keys: list[Row]) -> Row:
        return _softmax([_dot(k, q) / arb(spec.d_head).sqrt() for k in keys])

    qkv = [_plus(_times(w["qkv.weight"], t), _row(w["qkv.bias"])) for t in x]
    out = []
    for t, mixed in zip(x, _attend(spec, qkv, weigh, arb(0)), strict=True):
        y = _plus(t, _times(w["out.weight"], mixed), _row(w["out.bias"]))
        y = _norm(y, w, "norm1", 1e-12)
        out.append(_norm(_plus(y, _feed_forward(y, w)), w, "norm2", 1e-12))
    return out


def _linear(w: Any, spec: Any, x: list[Row]) -> list[Row]:
    def weigh(q: Row, keys: list[Row]) -> Row:
        turned = [_elu1(v) for v in q]
        return [_dot([_elu1(v) for v in k], turned) for k in keys]

    qkv = [_times(w["qkv.weight"], _norm(t, w, "norm1", 1e-5)) for t in x]
    out = []
    for t, mixed in zip(x, _attend(spec, qkv, weigh, arb(1e-6)), strict=True):
        y = _plus(t, _times(w["out.weight"], mixed))
        out.append(_plus(y, _feed_forward(_norm(y, w, "norm2", 1e-5), w)))
    return out


def _gru_block(w: Any, spec: Any, x: list[Row]) -> list[Row]:
    return _gru(w["ih.weight"], w["hh.weight"], w["ih.bias"], w["hh.bias"], x)


def _silu(x: Ball) -> Ball:
    return x * _sigmoid(x)


def _mamba2(w: Any, spec: Any, x: list[Row]) -> list[Row]:
    d, N, H = spec.d_model, spec.d_state, spec.n_heads
    projected = [_times(w["in.weight"], _rms(t, w["norm.weight"])) for t in x]
    mixed = [row[d : 2 * d + 2 * N] for row in projected]
    state = [[arb(0)] * N for _ in range(d)]
    out = []
    for k, row in enumerate(projected):
        conv = _row(w["conv.bias"])
        for tap, weight in enumerate(w["conv.weight"]):
            if (old := k - len(w["conv.weight"]) + 1 + tap) >= 0:
                conv = [
                    c + arb(float(g)) * m for c, g, m in zip(conv, weight, mixed[old], strict=True)
                ]
        conv = [_silu(c) for c in conv]
        inner, B, C = conv[:d], conv[d : d + N], conv[d + N :]
        y = []
        for channel in range(d):
            head = channel // (d // H)
            step = row[2 * d + 2 * N + head] + arb(float(w["dt_bias"][head]))
            dt = (1 + step.exp()).log()
            decay = (-dt * arb(float(w["a_log"][head])).exp()).exp()
            state[channel] = [
                decay * s + dt * inner[channel] * b for s, b in zip(state[channel], B, strict=True)
            ]
            y.append(_dot(state[channel], C) + arb(float(w["skip"][head])) * inner[channel])
        gated = [v * _silu(g) for v, g in zip(y, row[:d], strict=True)]
        out.append(_plus(x[k], _times(w["out.weight"], _rms(gated, w["gate_norm.weight"]))))
    return out


def all_of(n: int) -> list[tuple[Any, int]]:
    """All n · 2^n inputs."""
    strings = [np.array([s >> k & 1 for k in range(n)], np.uint8) for s in range(1 << n)]
    return [(bits, index) for bits in strings for index in range(1, n + 1)]
