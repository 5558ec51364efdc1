"""Closed formulas: what a causal layer keeps of the past, and what completing its output costs.

Definition 11 of the paper: a causal layer has causal complexity s if its k-th output is a function
of the k-th input and a *fingerprint* of the first k - 1 inputs, p numbers, computed from them in t
operations, p + t <= s. The formulas count one plain program per layer, so p and t are upper bounds
on the minimum, exact for the program. The programs are in the tests (`tests/support/completions`),
which run them on scalars that count operations.

Cost: weights are free constants; +, -, *, /, exp cost 1; a comparison with jump costs 1, so a ReLU
costs 1; each output value costs 1. The square root (normalisation), the logarithm (softplus) and
erf (GELU) are not operations of the paper's Definition 1: they count in t and also separately.

    d width   H heads   d_h = d / H   w hidden   k position (softmax only)
    N state   c convolution channels   v width of the convolution
    tM = mlp_operations, the cost of an MLP without its outputs
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ithbit.display import Printable
from ithbit.errors import SpecError
from ithbit.theory.architecture import Architecture

# The special operations among t; of these the paper's Definition 1 has only the first.
_SPECIAL = {
    "exponentials": "exp",
    "square_roots": "sqrt",
    "logarithms": "log",
    "error_functions": "erf",
}


@dataclass(frozen=True, repr=False)
class Complexity(Printable):
    """Causal complexity of one layer, counted on its plain program."""

    arch: Architecture
    kept: str  # what is kept of the first k - 1 inputs, in words
    dimension: int  # p
    dimension_formula: str
    operations: int  # t, including the layer's d outputs
    operations_formula: str
    exponentials: int  # at most this many of the operations: an ELU's branch depends on the data
    square_roots: int = 0
    logarithms: int = 0
    error_functions: int = 0
    position: int | None = None  # k, if the fingerprint grows with it: no bound follows
    holds: tuple[str, ...] = ()  # what follows for a recall task, in sentences

    @property
    def total(self) -> int:
        """p + t, an upper bound on the causal complexity."""
        return self.dimension + self.operations

    @property
    def covered(self) -> bool:
        """Whether all operations are among those of the paper's Definition 1."""
        return not (self.square_roots or self.logarithms or self.error_functions)

    def to_json(self) -> dict[str, Any]:
        numbers = ("dimension", "dimension_formula", "operations", "operations_formula", *_SPECIAL)
        return {
            **self.arch.to_json(),
            "fingerprint": self.kept,
            **{name: getattr(self, name) for name in (*numbers, "total", "position", "covered")},
            "holds": list(self.holds),
        }

    def render(self) -> Iterator[str]:
        yield f"{self.arch.family} ({self.arch.model}) · one layer · {self.arch.sizes}"
        if self.position is not None:
            yield f"at token k = {self.position}"
        yield f"  fingerprint  {self.dimension:>9,} numbers     p = {self.dimension_formula}"
        yield f"               {self.kept}"
        yield f"  completion   {self.operations:>9,} operations  t = {self.operations_formula}"
        counts = {what: getattr(self, name) for name, what in _SPECIAL.items()}
        if special := [f"{count:,} {what}" for what, count in counts.items() if count]:
            yield f"               at most {', '.join(special)} among them"
        upper = "an upper bound on the causal complexity"
        yield f"  p + t        {self.total:>9,}             {upper}"
        if self.position is not None:
            yield "The fingerprint grows with k: no bound for right-hand indexing follows."
        if not self.covered:
            yield (
                "sqrt, log and erf are not operations of the paper's Definition 1: Theorem 12a "
                "does not apply as stated, the counting theorem of `ithbit bound` does."
            )
        yield from self.holds


def mlp_operations(*widths: int) -> int:
    """Operations of affine, ReLU, …, affine through these widths: tM, without the outputs.

    An affine row of length m costs 2m, a ReLU 1. A hidden layer of width 0 is none.

    >>> mlp_operations(16, 64, 16), mlp_operations(16, 0, 16)
    (4160, 512)
    """
    widths = tuple(width for width in widths if width)
    rows = sum(2 * a * b for a, b in pairwise(widths))
    return rows + sum(widths[1:-1])


def causal_complexity(arch: Architecture, position: int | None = None) -> Complexity:
    """Fingerprint and operations of one causal layer, by closed formula.

    Exact for the programs of the module head. Softmax needs the position k of the computed token.

    >>> from ithbit.theory.architecture import architecture
    >>> gru = causal_complexity(architecture("gru", "trained"))
    >>> gru.dimension, gru.operations, gru.exponentials
    (16, 3328, 48)
    """
    if not arch.causal:
        raise SpecError(
            f"{arch.family} is not causal, so it has no causal complexity; take {arch.causal_twin}"
        )
    grows = arch.kind == "softmax"
    if grows and (position is None or position < 1):
        raise SpecError(
            f"the completion of {arch.family} grows with the position k of the token: "
            f"k must be at least 1, got {position}"
        )
    formulas = _formulas(arch).get((arch.model, arch.kind))
    if formulas is None:
        raise SpecError(f"no causal complexity is known for {arch.family} ({arch.model})")
    kept, *written = formulas
    p, t, *special = (eval(formula, _letters(arch, position)) for formula in written)
    p_text, t_text = (_as_people_write(formula) for formula in written[:2])
    counts = dict(zip(_SPECIAL, special, strict=False))
    k = position if grows else None
    return Complexity(arch, kept, p, p_text, t, t_text, **counts, position=k)


def _letters(arch: Architecture, position: int | None) -> dict[str, Any]:
    """What the letters of the module head stand for."""
    return {
        "d": arch.width,
        "H": arch.heads,
        "d_h": arch.head_width,
        "w": arch.hidden,
        "k": position,
        "N": arch.state,
        "c": arch.conv_channels,
        "v": arch.conv,
        "tM": mlp_operations,
    }


def _as_people_write(formula: str) -> str:
    """A formula without Python's signs: 2*d**2 - d is 2d² − d."""
    for sign, written in ((" * ", " "), ("**2", "²"), ("**3", "³"), ("*", ""), ("-", "−")):
        formula = formula.replace(sign, written)
    return formula


def _formulas(arch: Architecture) -> dict[tuple[str, str], tuple[str, ...]]:
    """For each layer what it keeps, in words, and the formulas of p, t and the special operations
    among t, in the order of `_SPECIAL`."""
    sums = ("S = Σ v φ(k)ᵀ and z = Σ φ(k), per head", "d * (d_h + 1)")
    tokens = ("keys and values of the first k − 1 tokens", "2*d * (k - 1)")
    window = ("the state (d × N) and the last v − 1 inputs of the convolution", "d*N + (v - 1) * c")
    step = "4*d**2 - d" if arch.transition == "constant" else "2*d**3 + 4*d**2"
    elus = "2*d" if arch.feature == "elu" else "0"
    activation, erfs = ("4*w", "w") if arch.activation == "gelu" else ("w", "0")
    return {
        ("formal", "rnn"): ("h_{k-1}", "d", "2 * tM(2*d, w, d) + d", "0"),
        ("formal", "ssm"): ("h_{k-1}", "d", f"{step} + tM(2*d, w, d) + d", "0"),
        ("formal", "linear"): (*sums, "6*d**2 + 2*d * d_h + 9*d - H + tM(d, w, d)", elus),
        ("formal", "softmax"): (
            *tokens,
            "6*d**2 - d + (4*d + H) * k - H + tM(d, w, d)",
            "H*k",
        ),
        ("trained", "gru"): ("h_{k-1}", "d", "6*d * (d + d) + 16*d", "3*d"),
        ("trained", "linear"): (
            *sums,
            f"8*d**2 + 2*d * d_h + 23*d + 4*d*w + {activation} + 6",
            *("2*d", "2", "0", erfs),
        ),
        ("trained", "softmax"): (
            *tokens,
            f"8*d**2 + (4*d + H) * k - H + 17*d + 6 + 4*d*w + {activation}",
            *("H*k", "2", "0", erfs),
        ),
        ("trained", "mamba2"): (
            *window,
            "6 + 16*d + (2*d - 1)*(2*d + 2*N + H) + (2*v + 4)*c + 6*H + 5*d*N + 2*d**2",
            *("c + 2*H + d", "2", "H"),
        ),
    }
