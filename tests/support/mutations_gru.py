"""Mistakes in the bounds and the check of GRUs, each of which `fuzz_gru.py` must find."""

from tests.support.mutations import Mutation

from ithbit.verification.checks import gru_balls as check
from ithbit.verification.proofs import gru, tanh_lines


def _one(name, module, old, new):
    return Mutation(name, ((module, old, new),))


MUTATIONS = [
    # Terms for rounding are each larger than what rounds, so they are left out together.
    Mutation("a step without rounding", (
        (gru, "off = slack(G.shape[-1] + 2 * G.shape[-2] + 8)", "off = 0.0"),
        (gru, "error = error + slack(0) * (np.abs(moved) + np.abs(middle))", "pass"),
        (gru, "wrong[k] = wrong[k] + slack(0) *", "wrong[k] = wrong[k] + 0 *"),
    )),
    Mutation("a check of sums and lines without rounding", (
        (check, "return (2 * terms + 16) * _U", "return 0.0"),
        (check, "+ 2 * _U * (np.abs(c) + Zonotope(c, G, x.e).reach())", ""),
        (check, "wrong = slope * x.e + 2 * _U *", "wrong = slope * x.e + 0 *"),
    )),
    _one("gates without the errors of their biases", gru, "(off * sizes + w.off[k])", "(off * sizes)"),
    _one("spreads that are halved", gru, "found = np.abs(np.matmul(matrix, G)).sum(-1) * (1 + off)",
         "found = 0.5 * np.abs(np.matmul(matrix, G)).sum(-1)"),
    _one("a product without its second order", gru, "np.maximum(of_a * of_b * _UP - np.abs(same), 0)",
         "0 * same"),
    _one("equal symbols that count in full", gru, "same = (np.matmul(a, equal) * b).sum(-1) / 2",
         "same = (np.matmul(a, equal) * b).sum(-1)"),
    _one("all symbols squared are 1", gru, "of_bits = G[..., ::columns]", "of_bits = G"),
    _one("a reset gate without its error", gru, "(np.abs(u) + u_spread) * r_off", "0 * r_off"),
    _one("a candidate without the rest of its product", gru, "v_off = v_off + rest + x_off",
         "v_off = v_off + x_off"),
    _one("an update gate without its error", gru, "z_off * (np.abs(D) + d_spread)", "0 * z_off"),
    _one("a candidate whose error is lost", gru, "n_off * (1 - z_low)", "0 * n_off"),
    _one("a candidate's error by the gate's centre", gru, "n_off * (1 - z_low)", "n_off * (1 - z)"),
    _one("a state without the rest of its product", gru, "(1 - z_low) + rest", "(1 - z_low)"),
    _one("a range below that is too narrow", gru, "np.minimum(r_low * u_low, r_high * u_low)",
         "r_low * u_low"),
    _one("a range above that is too narrow", gru, "np.maximum(r_low * u_high, r_high * u_high)",
         "r_low * u_high"),
    _one("a range without its input's", gru, "x_low, x_high = _ends(x, x_spread + x_off)",
         "x_low, x_high = x, x"),
    _one("a wide state that is half as wide", gru, "np.where(known, error, 1.0)",
         "np.where(known, error, 0.5)"),
    _one("a state without what was left over", gru, "error[..., None] * np.eye(d)",
         "0 * error[..., None] * np.eye(d)"),
    _one("a head without its generators", gru, "reach = (np.abs(moves).sum(-1) + off)", "reach = (off)"),
    _one("a head without its rounding", gru, "reach = (np.abs(moves).sum(-1) + off)",
         "reach = (np.abs(moves).sum(-1))"),
    _one("a line without its error", gru, "np.where(slope > 0, slope * error, 0.0) + radius",
         "np.where(slope > 0, slope * error, 0.0)"),
    _one("a line without that of its form", gru, "np.where(slope > 0, slope * error, 0.0) + radius",
         "radius"),
    Mutation("a tangent at another point without its slope", (
        (tanh_lines, "p = np.clip(best, left, np.maximum(high, left))", "p = left"),
        (tanh_lines, "rise = np.maximum(bend * (left - p), bend * (high - p))", "rise = 0 * p"),
    )),
    _one("a line that is never below tanh", tanh_lines, "-_above(-high, -low, a, -ends[1], -ends[0])",
         "_above(low, high, a, *ends)"),
    _one("a table of tanh without its outer terms", tanh_lines, "*terms, last = _table()",
         "*terms, last = _table()[:3]"),
    _one("a sigmoid of x instead of x/2", tanh_lines, "tanh_line(low / 2, high / 2)",
         "tanh_line(low, high)"),
    _one("a check whose ranges are halved", check, "radius = (x.reach() + x.e) * _UP",
         "radius = (x.reach() + x.e) / 2"),
    _one("a check whose lines have no error", check, "np.where(flat, 0.0, wrong) + off",
         "np.where(flat, 0.0, wrong)"),
    _one("a check of lines without their form's error", check, "np.where(flat, 0.0, wrong) + off", "off"),
    _one("a check whose tanh is never above its line", check, "top = top.max(peak)", "pass"),
    _one("a check whose tanh is never below its line", check, "bottom = bottom.min(-peak)", "pass"),
    _one("a check of products without their second order", check,
         "rest = a * b * _UP - np.abs(both).sum(1) * (1 - _share(m))", "rest = 0"),
    _one("a check of equal symbols in full", check, "both = x.G * y.G / 2", "both = x.G * y.G"),
    _one("a check where all symbols squared are 1", check, "both[:, ::columns] *= 2", "both *= 2"),
    _one("a check without the error of a factor", check, "far_x * y.e + far_y * x.e", "far_x * y.e"),
    _one("a check without the candidate's error", check, "new.e + n.e * (1 - least[d:])", "new.e"),
    _one("a check of an update gate that is too open", check, "(1 - least[d:])", "(1 - most[d:])"),
    _one("a check with a range that is too narrow", check,
         "np.minimum(least[:d] * low_u, most[:d] * low_u) + low_x", "least[:d] * low_u + low_x"),
    _one("a check of wide states that are half as wide", check, "np.where(known, new.e, 1.0)",
         "np.where(known, new.e, 0.5)"),
    _one("a check without what steps leave over", check, "np.diag(h.e)", "0 * np.diag(h.e)"),
    _one("a check without rounding", check, "return (2 * terms + 16) * _U", "return 0.0"),
    _one("a check at positions t/n", check, "place, self.n + 1)", "place, self.n)"),
    _one("a check that keeps too long a path", check, "self._path[known].token == tokens[known]",
         "self._path[known].token[1] == tokens[known][1]"),
]  # fmt: skip
