"""Mistakes in the bounds, each of which the fuzz harness must find.

A mutation replaces a piece of a module's source, which must occur there once. The functions of the
module then get the code of the changed source, so that all who imported them have the mistake.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

from ithbit.verification.checks import affine_sets, one_layer_balls, two_layers_balls
from ithbit.verification.proofs import (
    affine_forms,
    attention,
    bands,
    interface,
    one_layer,
    ratio_ends,
    single_inputs,
    token_balls,
    token_parts,
)
from ithbit.verification.proofs import two_layers as two


class Mutation(NamedTuple):
    """A mistake, as pairs of module, source and changed source."""

    name: str
    changes: tuple[tuple[ModuleType, str, str], ...]


def _one(name: str, module: ModuleType, old: str, new: str) -> Mutation:
    return Mutation(name, ((module, old, new),))


MUTATIONS = [
    _one("no rounding at all in forms and sums", affine_forms, "return (terms + 16) * _U", "return 0.0"),
    _one("an error that is left out of a form's ends", affine_forms, "(self.spread() + self.e)",
         "self.spread()"),
    _one("a norm without its epsilon", affine_forms, "v0 = (c * c).mean(-1) + eps",
         "v0 = (c * c).mean(-1)"),
    _one("a variance without its second order", affine_forms, "ve = square / 2 +", "ve = 0 * square +"),
    _one("a least variance without its reach", affine_forms, "lo = np.maximum(v0 - reach,",
         "lo = np.maximum(v0,"),
    _one("a tangent of 1/√v that is too high", affine_forms, "1.5 * third * _DOWN", "above"),
    _one("normalised coordinates capped too low", affine_forms, "cap = np.sqrt(d - 1.0) * _UP",
         "cap = np.sqrt(d - 1.0) * 0.9"),
    _one("a GELU that never lies below its chord", affine_forms, "- bend * _BEND_MAX", "- bend * 0"),
    _one("a table of GELU that ends at 8", affine_forms, "if beyond.any():", "if False:"),
    _one("one unknown node hides GELUs beyond 8", affine_forms, "if beyond.any():",
         "if max(x.max(), -x.min()) > GELU_END:"),
    _one("1/D between ends that are too close", attention, "radius = (top - low) / 2",
         "radius = (top - low) / 4"),
    _one("a free bit without its generator", attention, "g * ((top + low) / 2)[..., None, None]",
         "g * (np.arange(g.shape[-2]) > 0)[:, None] * ((top + low) / 2)[..., None, None]"),
    Mutation("denominators that may be negative", (
        (attention, "(least > 0) & (least <= most)", "(least == least)"),
        (one_layer, "~(most <= _WIDE * least)", "most > _WIDE * least"),
        (one_layer, "~((high - low).sum(-1) / 2 >= affine.sum(-1))",
         "(high - low).sum(-1) / 2 < affine.sum(-1)"),
        (one_layer, "known = np.isfinite(found)", "known = found == found"),
        (affine_forms, "valid = self.e >= 0", "valid = self.e == self.e"),
        (affine_forms, "radius = np.where(radius >= 0, radius, np.inf)", "pass"),
        (interface, "known = (self.lower <= self.upper)", "known = (self.lower == self.lower)"),
    )),
    _one("an exp that never lies below its chord", attention,
         "bottom = np.minimum(tangent - slack(8) * near.hi * (1 + np.abs(t)) - off, top)",
         "bottom = top"),
    _one("a product without its second order", attention,
         "np.abs(w) * value.e + rw * rv", "np.abs(w) * value.e"),
    _one("scores without their second order", attention, "np.abs(b.c) * a.e + ra * rb",
         "np.abs(b.c) * a.e"),
    _one("a chosen slot without its own generators", attention, ".sum(1) + of_bits", ".sum(1)"),
    _one("a mean without the query's own value", one_layer,
         "np.maximum(np.where(barred, -np.inf, v).max((1, 2)), vq)",
         "np.where(barred, -np.inf, v).max((1, 2))"),
    Mutation("an exact range of a ratio that nothing confirms", (
        (ratio_ends, "range(_STEPS)", "range(0)"),
        (ratio_ends, "(F <= 0) & np.isfinite(t)", "np.isfinite(t)"),
    )),
    Mutation("an exact range that is confirmed without what the bits add", (
        (ratio_ends, "range(_STEPS)", "range(1)"),
        (ratio_ends, "+ np.abs(n - t[:, None] * d).sum(1)", ""),
    )),
    _one("an exact range that replaces only its middle", attention,
         "0, half + TINY", "0, 0 * half"),
    _one("parts of a set with gaps between them", token_parts, "half = reach / parts *",
         "half = reach / parts / 2 *"),
    _one("parts of a set without its error", token_parts, "wrong = x.e + off *", "wrong = 0 * x.e + off *"),
    _one("parts of a set that leave out its end", token_parts, "(2 * np.arange(parts) + 1) / parts - 1",
         "(2 * np.arange(parts) + 1) / parts - 1.2"),
    _one("a second ratio without its remainder", two, "+ size * radius[..., None]", ""),
    _one("linear attention without its epsilon", two, "-m * DENOMINATOR_EPS", "0 * m"),
    _one("causal attention that does not see itself", two, "place <= place[:, None]",
         "place < place[:, None]"),
    _one("bands of half their width", bands, "np.maximum(high - low, 0) / 2",
         "np.maximum(high - low, 0) / 4"),
    _one("bands that are called empty too soon", bands, "outside | (least > most)",
         "outside | (2 * least > most)"),
    _one("a norm of single inputs without its rounding", single_inputs, "(rows.e + 2 * off * rows.size)",
         "rows.e"),
    _one("a least deviation that is the greatest", single_inputs, "deviation.min()", "deviation.max()"),
    _one("positions t/L instead of t/(L-1)", token_balls, "fmpq(t, max(length - 1, 1))",
         "fmpq(t, length)"),
    _one("limits that leave out a string at their end", single_inputs, "limits[:, 0] <= at",
         "limits[:, 0] < at"),
    Mutation("bounds that are NaN are kept as the best", (
        (interface, "np.where(known, self.lower, -np.inf), np.where(known, self.upper, np.inf)",
         "np.nan_to_num(self.lower, nan=0.0), np.nan_to_num(self.upper, nan=0.0)"),
        (affine_forms, "if not known.all():", "if False:"),
    )),
    _one("a ratio without its rounding", attention, "count = slack(3 * n)", "count = 0.0"),
    _one("linear maps without their rounding", affine_forms,
         "(x.e + off * (np.abs(x.c) + x.spread()))", "x.e"),
    _one("centred rows without their rounding", affine_forms,
         "+ off * (given + given.mean(-1, keepdims=True))", ""),
    _one("values of GELU without their rounding", affine_forms,
         "return max(_TAIL, _TAYLOR) + 16 * _U * (size + 1 / GELU_STEP)", "return 0 * size"),
    _one("linear maps of rows without their rounding", single_inputs,
         "off = slack(len(to.weight) + 4) *", "off = 0 *"),
    _one("averages of rows with exact weights", single_inputs, "far = 2 * off / (1 - off)", "far = 0"),
    _one("a check whose GELU never lies below its chord", one_layer_balls, "- bend * _BEND[1]", ""),
    _one("a check without the remainder of a norm", one_layer_balls, "rest = r[k] * wave", "rest = arb(0)"),
    _one("a check of sets without rounding", affine_sets, "return (terms + 16) * 2.0**-52", "return 0.0"),
    _one("a check whose linear maps have no errors", affine_sets, "(x.e @ size + off_by", "(0 * (x.e @ size) + off_by"),
    _one("a check whose sums have no errors", affine_sets, "(x.e + y.e + off_by(2)", "(off_by(2)"),
    _one("a check whose variances have no second order", affine_sets,
         "square = square * (1 + 2 * off)", "square = square * 0"),
    _one("a check whose norms have no epsilon", affine_sets, "slope * (v + eps + square / 2)",
         "slope * (v + square / 2)"),
    _one("a check whose norms stay on their chord", affine_sets,
         "rest = (most - least) / 2 + np.abs(slope)", "rest = np.abs(slope)"),
    _one("a check whose norms have no remainder", affine_sets, "+ r * moves + e * top", "+ e * top"),
    _one("a check whose norms forget errors", affine_sets, "+ r * moves + e * top[:, None]", "+ r * moves"),
    _one("a check whose normalised coordinates are capped too low", affine_sets,
         "np.sqrt(d - 1.0) * UP", "np.sqrt(d - 1.0) * 0.8"),
    _one("a check whose GELU lies on its points' chords", affine_sets, "- bend * step * step / 8", "- 0 * bend"),
    _one("a check whose GELU has no second part", affine_sets, "((most - least) / 2 + off) * UP", "off * UP"),
    _one("a check whose GELU ends at 9", affine_sets, "np.maximum(x, 0.0))", "np.maximum(terms[0], 0.0))"),
    _one("a check whose exp never lies below its chord", affine_sets, "least = a * (1 - tau)", "least = a"),
    _one("a check whose exp lies on its tangent", affine_sets,
         "rest = (most - least) / 2 + 4 * _EXP", "rest = 4 * _EXP"),
    _one("a check whose features are lines", affine_sets, "np.where(c - r < 0, _exp(", "np.where(c + r < 0, _exp("),
    _one("a check whose products have no second order", affine_sets, "+ q.radius * k.radius", ""),
    _one("a check whose bits do not bend what they choose", affine_sets,
         "np.abs(one.G - zero.G).sum(-1) / 2 +", ""),
    _one("a check that forgets what is chosen", affine_sets, "np.maximum(zero.e, one.e)", "0 * zero.e"),
    _one("a check whose ratios are affine", two_layers_balls,
         "own = back * (along[..., 0] * most * UP)[:, None]", "own = 0 * back"),
    _one("a check whose remainders know half of their axes", two_layers_balls,
         "np.abs(np.matmul(P, g)).sum(-1, keepdims=True) +",
         "np.abs(np.matmul(P, g)).sum(-1, keepdims=True) * (np.arange(len(P[0])) > 0)[:, None] +"),
    _one("remainders of a search that know half of their axes", attention,
         "along = np.abs(np.matmul(g, axes)).sum(-2)",
         "along = np.abs(np.matmul(g, axes)).sum(-2) * (np.arange(g.shape[-1]) > 0)"),
    _one("second remainders without their directions", two, "own, missed, size = scaled(vectors, N.e, radius)",
         "own, missed, size = scaled(0 * vectors, N.e, radius)"),
    _one("a check whose first ratios have no rounding", two_layers_balls, "+ 2 * wrong * top[..., 0]", ""),
    _one("a check whose bits do not see themselves", two_layers_balls, "mine[: 2 * k] = w[", "mine[: 2 * k] = 0 * w["),
    _one("a check whose weights and values are independent of each other", two_layers_balls,
         "+ wr * centred.radius", ""),
    _one("a check whose second ratios are affine", two_layers_balls, "-1) * radius[..., None]",
         "-1) * 0 * radius[..., None]"),
    _one("a check whose second ratios have no centre", two_layers_balls, "[N.c[..., None], N.G], -1)",
         "[0 * N.c[..., None], N.G], -1)"),
    _one("a check whose second ratios forget errors", two_layers_balls, "N.e * (middle + radius)", "0 * N.e"),
    _one("a check that takes the best part of the last token", two_layers_balls, "hull(linear(y, ",
         "hull(linear(y[-1:], "),
    _one("a check of linear attention without its epsilon", two_layers_balls, "N.c - m * self.extra", "N.c"),
    _one("a check of causal attention that sees the future", two_layers_balls, "s <= t for s in place",
         "s <= t + 1 for s in place"),
    _one("a check whose positions are t/L", two_layers_balls, "fmpq(t, length - 1)", "fmpq(t, length)"),
    _one("a check whose units have no errors", two_layers_balls, "np.abs(a) * hidden.e + r + off_by(2)", "off_by(2)"),
    _one("a check whose parts of a token leave gaps", affine_sets, "half = reach / parts *", "half = reach / parts / 2 *"),
    _one("a check whose parts of a token have no rounding", affine_sets,
         "wrong = e + off * (np.abs(G) + np.abs(along)).sum(1) + off *", "wrong = e + 0 *"),
    _one("a check whose parts of a token have one direction", affine_sets, "[G - along,", "[0 * along,"),
    _one("a check that takes the best part of a token", two_layers_balls, "min(each[0] for each in parts)",
         "max(each[0] for each in parts)"),
    _one("a check whose ratios have values without rounding", affine_sets,
         "off_by(d) * np.abs(v) + ENTRY)", "0 * np.abs(v) + ENTRY)"),
    _one("a check whose ratios have values without the radius of balls", affine_sets,
         "off_by(d) * np.abs(v) + ENTRY)", "off_by(d) * np.abs(v))"),
    _one("a check whose ratios have terms without errors", affine_sets, "each + 2 * self.far", "each"),
    _one("a check whose ratios have a fixed part without rounding", affine_sets,
         "2 * (self.sizes + np.abs(t) * self.D)", "0 * self.D"),
    _one("a check whose ratios have a fixed part without the radius of balls", affine_sets,
         "2 * self.wrong + TINY <= 0", "TINY <= 0"),
    _one("a check whose sums of chosen terms have no rounding", affine_sets,
         "np.abs(chosen).sum(-1) + 2 *", "2 *"),
    _one("a check that takes any of two terms for the greater", affine_sets,
         "chosen = self.terms(t, sure=True).max(0)", "chosen = self.terms(t, sure=True)[0]"),
    _one("a check whose ratios forget their fixed part", affine_sets,
         "+ (self.N - t * self.D)\n        return", "+ (0 * self.N - t * self.D)\n        return"),
    _one("a check that believes the ends that were found", affine_sets,
         "np.where(sums.holds(t), t, np.inf)", "t"),
    _one("a check whose least ratio has the wrong sign", affine_sets, "N=-sums.N", "N=sums.N"),
    _one("a check whose intervals keep the symbols of a form", affine_sets,
         "G[at, :, :k], G[at, :, k:] = 0.0, (", "G[at, :, k:] = ("),
    _one("a check whose intervals are too narrow", affine_sets,
         "np.maximum(high - middle, middle - low) * UP", "(high - middle) * (1 - 1e-9)"),
    _one("a check whose ratios of intervals have no epsilon", two_layers_balls,
         "fixed_sizes[at], fixed_w[at]", "fixed_sizes[at], fixed_w[at] - self.extra"),
    _one("a check whose ranges along axes have no rounding", affine_sets, "wrong[better] * UP + TINY",
         "0 * wrong[better]"),
    _one("a check whose heads share what they do not", two_layers_balls, "G[:, dims, k:][..., dims] =",
         "G[:, dims, k:][..., :d] ="),
    _one("a check whose hulls are too narrow", affine_sets, "return (x.c - room).min(0)", "return (x.c + room).min(0)"),
    _one("a check whose hulls are of one part", two_layers_balls, "hull(self._rest(parts, ",
         "hull(self._rest(parts[:1], "),
    _one("a check whose hulls have the wrong middle", two_layers_balls, "= middle[better], half",
         "= c[token, better], half"),
    _one("a check that forgets what slots have of their own", affine_sets,
         "(self.e + np.abs(self.G[..., k:]).sum(-1))", "self.e"),
]  # fmt: skip


def _functions(of: ModuleType | type) -> Iterator[FunctionType]:
    for each in vars(of).values():
        if isinstance(each, FunctionType):
            yield each
        elif isinstance(each, type):
            yield from _functions(each)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """The mistake, while the context lasts."""
    before: list[tuple[FunctionType, CodeType]] = []
    sources: dict[ModuleType, str] = {}
    for module, old, new in mutation.changes:
        source = sources.get(module) or inspect.getsource(module)
        assert source.count(old) == 1, f"{old!r} is in {module.__name__} {source.count(old)} times"
        sources[module] = source.replace(old, new)
    for module, source in sources.items():
        changed = {c.co_qualname: c for c in _codes(compile(source, module.__name__, "exec"))}
        for function in _functions(module):
            code = changed.get(function.__code__.co_qualname)
            if function.__module__ == module.__name__ and code is not None:
                before.append((function, function.__code__))
                function.__code__ = code
    try:
        yield
    finally:
        for function, code in before:
            function.__code__ = code
