"""Mistakes in the bounds for Mamba2 and in their second implementation, each of which the fuzz
harness must find; see `mutations.py`."""

from types import ModuleType

from tests.support.mutations import Mutation

from ithbit.verification.checks import ball_arrays, mamba2_balls
from ithbit.verification.proofs import affine_forms, boxes, mamba2, mamba2_sums, mamba2_tokens


def _one(name: str, module: ModuleType, old: str, new: str) -> Mutation:
    return Mutation(name, ((module, old, new),))


LATE = {  # found after a second or more
    "a gate of the last token without its radius",
    "a token without its own error",
    "functions of y of half their radius",
    "a convolution without the radius of its inputs",
    "a check with Jacobians of points",
    "a check of tokens with Jacobians of points",
    "a check with the gradient's centre alone",
    "a check without the gate's radius",
    "a check with functions of y of half their radius",
    "a check whose tokens move too little",
}

MAMBA2_MUTATIONS = [
    _one(
        "no rounding at all in forms and boxes",
        affine_forms,
        "return (terms + 16) * _U",
        "return 0.0",
    ),
    _one(
        "sums of balls without rounding",
        ball_arrays,
        "self.r + other.r + np.abs(c) * U",
        "self.r + other.r",
    ),
    _one(
        "products of balls without rounding",
        ball_arrays,
        "self.r * other.size + np.abs(c) * U",
        "self.r * other.size",
    ),
    _one("a product of boxes without its second order", boxes, "a.r * b.size", "a.r * np.abs(b.c)"),
    _one("inner products without the radius of one side", boxes, "+ summed(a.r, b.size)", ""),
    _one(
        "SiLU that does not turn",
        boxes,
        "turns = (low < _TURN + 1e-6) &",
        "turns = False & (low < _TURN + 1e-6) &",
    ),
    _one(
        "softplus that ends where it begins",
        boxes,
        '_value("softplus", high) + _off',
        '_value("softplus", low) + _off',
    ),
    _one(
        "tables without their remainder",
        boxes,
        "return _table(name)[1] + _BEYOND +",
        "return -1e-11 +",
    ),
    _one(
        "steps whose sums are largest at their ends",
        mamba2_sums,
        "joint += np.maximum(-before, 0) * bend",
        "pass",
    ),
    _one("inputs without their radius", mamba2_sums, "top = sign * k.c + k.r", "top = sign * k.c"),
    _one(
        "a state that is forgotten too soon",
        mamba2_sums,
        "new = np.maximum(total[..., :16, :], total[..., 16:, :])",
        "new = total[..., :16, :]",
    ),
    _one(
        "a first state that is forgotten too soon",
        mamba2_sums,
        "new = np.maximum(total[..., :4, :], total[..., 4:, :])",
        "new = total[..., 4:, :]",
    ),
    _one(
        "only the slower decay",
        mamba2_sums,
        "at_first, at_last = before * slow, before * fast",
        "at_first = at_last = before * slow",
    ),
    _one("a mean square without its second order", mamba2, "ve = square / 2 + give", "ve = give"),
    _one(
        "a norm without the remainder of its scale",
        mamba2,
        "out_G[..., -1] = c * se[:, None]",
        "out_G[..., -1] = 0",
    ),
    _one("a norm without its product of errors", mamba2, "+ r * rs[:, None]", ""),
    _one(
        "normalised coordinates capped too low",
        mamba2,
        "np.sqrt(float(d)) * _UP",
        "np.sqrt(float(d)) * 0.9",
    ),
    _one(
        "an epsilon that is the same for y and y / ρ",
        mamba2,
        "rms_norm(Form(at * gate.c * sign, G, e), gain, eps)",
        "rms_norm(Form(at * gate.c * sign, G, e), gain)",
    ),
    _one(
        "a sign of ρ that is forgotten",
        mamba2,
        "sign, at = token.G.shape[-1], np.sign(rate.c)[:, None], mu + t.c",
        "sign, at = token.G.shape[-1], 1 + 0 * rate.c[:, None], mu + t.c",
    ),
    _one(
        "a gate of the last token without its radius",
        mamba2,
        "_diagonal((np.abs(at) + t.r) * gate.r * _UP)",
        "0",
    ),
    _one(
        "a logit without what the token adds",
        mamba2,
        "rest = np.abs(G[:, d:]).sum(-1)",
        "rest = np.abs(G[:, d : 2 * d]).sum(-1)",
    ),
    _one("functions of y of half their radius", mamba2, "A * z.r[:, None]", "A * z.r[:, None] / 2"),
    _one(
        "a convolution without the radius of its inputs",
        mamba2,
        "e[:, back:] += np.abs(weight[tap]) * own.r",
        "pass",
    ),
    _one(
        "a token without its own error",
        mamba2,
        "e = (out.e + slack(0) *",
        "e = (0 * out.e + slack(0) *",
    ),
    _one(
        "a skip that is left out",
        mamba2,
        "y = plus(sums.of_channels(self.head_of), own)",
        "y = sums.of_channels(self.head_of)",
    ),
    _one(
        "a query in the place of the first bit",
        mamba2_tokens,
        "row[:, 2] = 2 * n",
        "row[:, 3] = 2 * n",
    ),
    _one(
        "a check with products without their second order",
        ball_arrays,
        "self.r * other.size",
        "self.r * np.abs(other.c)",
    ),
    _one(
        "a check with SiLU that does not turn",
        ball_arrays,
        "turns = (of.ends[0] <= _TURN)",
        "turns = (of.ends[0] <= -9e9)",
    ),
    _one(
        "a check with tables without their remainder",
        ball_arrays,
        "return value, remainder + 1e-15",
        "return value, 1e-15",
    ),
    _one(
        "a check with decays of the middle of their range",
        mamba2_balls,
        "joint = M * middle[s].c + np.abs(M) * middle[s].r",
        "joint = M * decay[s].c",
    ),
    _one("a check without the slope of a step", mamba2_balls, "joint += d[s].r * steep", "pass"),
    _one(
        "a check without the slope of the value",
        mamba2_balls,
        "(top - M * (a.size * fast), top - M * (a.ends[0] * slow))",
        "(M * (a.size * fast), M * (a.ends[0] * slow))",
    ),
    _one(
        "a check that forgets a state",
        mamba2_balls,
        "new = np.maximum(total[:, :, :half], total[:, :, half:])",
        "new = total[:, :, :half]",
    ),
    _one(
        "a check with Jacobians of points",
        mamba2_balls,
        "J = out @ (_norm(q, eps)[1]",
        "J = out @ (_norm(at, eps)[1]",
    ),
    _one(
        "a check with functions of y of half their radius",
        mamba2_balls,
        "gates[..., None] * A, z.r",
        "gates[..., None] * A, z.r / 2",
    ),
    _one(
        "a check of tokens with Jacobians of points",
        mamba2_balls,
        "J = out @ _norm(every)[1]",
        "J = out @ _norm(point(q.c))[1]",
    ),
    _one(
        "a check with the gradient's centre alone",
        mamba2_balls,
        "rest = J.r * np.abs(gate.c) * t.r +",
        "rest =",
    ),
    _one(
        "a check without the gate's radius",
        mamba2_balls,
        "(gate.r + 8 * U * gate.size)",
        "(8 * U * gate.size)",
    ),
    _one("a check without the token's radius", mamba2_balls, "rest + K.size * token.r", "rest"),
    _one(
        "a check with an epsilon that is the same for y and y / r",
        mamba2_balls,
        "eps, at = ratio * ratio * _EPS,",
        "eps, at = _EPS,",
    ),
    _one(
        "a check whose tokens move too little",
        mamba2_balls,
        "return (J.size @ r[..., None])[..., 0]",
        "return 0.5 * (J.size @ r[..., None])[..., 0]",
    ),
    _one(
        "a check that allows too few windows",
        mamba2_balls,
        "[(bit != 1, bit != 0) for bit in bits]",
        "[(bit != 1, bit == 1) for bit in bits]",
    ),
]
