"""Decisions of Mamba2 as it is trained; weights as in `trained`.

d width   H heads   N state   c = d + 2N channels of the convolution
"""

import math
from collections.abc import Sequence

from tests.support.decisions.roots import mean_square, two_norms
from tests.support.decisions.system import Scalar, System, Vector, add, dot, matvec
from tests.support.decisions.trained import Model, Weights, split

RMS_EPS = 1e-5


def rms_norm(s: System, x: Vector, weight: Sequence[float]) -> list[Scalar]:
    rho = s.rsqrt(mean_square(x) + RMS_EPS)
    return [u * rho * g for u, g in zip(x, weight, strict=True)]


def silu(s: System, a: Scalar) -> Scalar:
    return s.keep(a, 1.0 + s.exp(-1.0 * a))


def softplus(s: System, a: Scalar) -> Scalar:
    return s.log(1.0 + s.exp(a))


def mamba2_inputs(
    s: System, w: Weights, x: Vector, window: Vector, N: int
) -> tuple[list[Scalar], list[Scalar], list[Scalar], list[Scalar], list[Scalar]]:
    """gate, x, B, C and dt at the last token; `window` is the convolution's sum over older ones."""
    d = len(x)
    projected = matvec(w["in.weight"], rms_norm(s, x, w["norm.weight"]))
    gate, new, dt = projected[:d], projected[d : 2 * d + 2 * N], projected[2 * d + 2 * N :]
    gate = [silu(s, s.keep(u)) for u in gate]
    last = w["conv.weight"][-1]
    mixed = [
        silu(s, s.keep(old + u * tap + b))
        for old, u, tap, b in zip(window, new, last, w["conv.bias"], strict=True)
    ]
    steps = [softplus(s, s.keep(u + b)) for u, b in zip(dt, w["dt_bias"], strict=True)]
    return gate, mixed[:d], mixed[d : d + N], mixed[d + N :], steps


def mamba2_output(w: Weights, state: list[list[Scalar]], C: Vector, x: Vector) -> list[Scalar]:
    """y = C h + D x, channel by channel."""
    per = len(x) // len(w["skip"])
    return [
        dot(row, C) + u * w["skip"][j // per]
        for j, (row, u) in enumerate(zip(state, x, strict=True))
    ]


def mamba2_step(s: System, w: Weights, old: list[Vector], x: Vector, B: Vector, steps: Vector):
    """h' = e^(dt A) h + dt x B^T."""
    per = len(x) // len(steps)
    decay = [s.exp(dt * -math.exp(a)) for dt, a in zip(steps, w["a_log"], strict=True)]
    return [
        [u * decay[j // per] + b * (steps[j // per] * channel) for u, b in zip(row, B, strict=True)]
        for j, (row, channel) in enumerate(zip(old, x, strict=True))
    ]


def mamba2_rhi(
    s: System,
    model: Model,
    x: Vector,
    states: Sequence[Sequence[float]],
    windows: Sequence[Sequence[float]],
    N: int,
) -> Scalar:
    """Mamba2 with the last bits fixed: layer 1 sees them, so its window is a constant."""
    d = len(x)
    if len(model.blocks) == 1:
        (w,) = model.blocks
        gate, u, B, C, steps = mamba2_inputs(s, w, x, windows[0], N)
        old = [s.fingerprint(row) for row in split(states[0], d)]
        y = mamba2_output(w, mamba2_step(s, w, old, u, B, steps), C, u)
        return mamba2_readout(s, model, x, y, gate)
    for layer, (w, state, window) in enumerate(zip(model.blocks, states, windows, strict=True)):
        old = [s.fingerprint(row) for row in split(state, d)]
        window = s.fingerprint(window) if layer else window
        gate, u, B, C, steps = mamba2_inputs(s, w, x, window, N)
        y = mamba2_output(w, mamba2_step(s, w, old, u, B, steps), C, u)
        if layer:
            y = [s.keep(v) for v in y]
        gated = [s.keep(a * b) for a, b in zip(y, gate, strict=True)]
        out = matvec(w["out.weight"], rms_norm(s, gated, w["gate_norm.weight"]))
        x = [s.keep(u) for u in add(out, x)]
    logit = dot(rms_norm(s, x, model.leave), model.head) + model.bias
    s.test(logit)
    return logit


def mamba2_readout(s: System, model: Model, x: Sequence[float], y: Vector, gate: Vector) -> float:
    """One layer from y on: two RMSNorms, removed by squaring."""
    (w,) = model.blocks
    u = [a * b for a, b in zip(y, gate, strict=True)]
    v = mean_square(u) + RMS_EPS
    T1 = matvec(w["out.weight"], [a * g for a, g in zip(u, w["gate_norm.weight"], strict=True)])
    weight = [h * g for h, g in zip(model.head, model.leave, strict=True)]
    return two_norms(s, T1, x, v, weight, model.bias, RMS_EPS, centre=False)


def mamba2_lhi(
    s: System,
    model: Model,
    x: Sequence[float],
    window: Sequence[float],
    N: int,
    start: Sequence[Sequence[float]],
    decays: Sequence[float],
    rest: Sequence[float],
) -> Scalar:
    """At the end token h = decay(bits) start(index) + b(bits), and C is a constant there.

    Parameters: the decay of each head over the bits, and C . b(bits), d numbers.
    """
    (w,) = model.blocks
    d, H = len(x), model.heads
    gate, u, B, C, steps = mamba2_inputs(s, w, x, window, N)
    kept, b = s.fingerprint(decays), s.fingerprint(rest)
    per = d // H
    own = mamba2_step(s, w, [[0.0] * N] * d, u, B, steps)
    last = [math.exp(dt * -math.exp(a)) for dt, a in zip(steps, w["a_log"], strict=True)]
    y = [
        (kept[j // per] * dot(start[j], C) + b[j]) * last[j // per]
        + dot(own[j], C)
        + w["skip"][j // per] * u[j]
        for j in range(d)
    ]
    return mamba2_readout(s, model, x, y, gate)
