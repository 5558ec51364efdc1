"""Closed formulas: what a causal layer keeps of the past, and what completing its output costs.

Definition 11 of the paper: a causal layer has causal complexity s if its k-th output is a function
of the k-th input and a *fingerprint* of the first k - 1 inputs, p numbers, computed from them in t
operations, p + t <= s. The formulas count one plain program per layer, so p and t are upper bounds
on the minimum, exact for the program. The programs are in the tests (`tests/theory/completions`),
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

from ithbit.errors import SpecError
from ithbit.shown import Shown
from ithbit.theory.architecture import Architecture

# The special operations among t; of these the paper's Definition 1 has only the first.
_SPECIAL = {
    "exponentials": "exp",
    "square_roots": "sqrt",
    "logarithms": "log",
    "error_functions": "erf",
}


@dataclass(frozen=True, repr=False)
class Complexity(Shown):
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

    @property
    def fingerprint(self) -> int:
        """How many numbers are kept of the past tokens."""
        return self.dimension

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
        }

    def parts(self) -> Iterator[str]:
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


def mlp_operations(*widths: int) -> int:
    """Operations of affine, ReLU, …, affine through these widths: tM, without the outputs.

    An affine row of length m costs 2m, a ReLU 1.

    >>> mlp_operations(16, 64, 16)
    4160
    """
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
    if arch.kind == "softmax":
        if position is None or position < 1:
            raise SpecError(
                f"the completion of {arch.family} grows with the position k of the token: "
                f"k must be at least 1, got {position}"
            )
        return (_softmax if arch.model == "formal" else _bert)(arch, position)
    if (arch.model, arch.kind) not in _FORMULAS:
        raise SpecError(f"no causal complexity is known for {arch.family} ({arch.model})")
    return _FORMULAS[arch.model, arch.kind](arch)


def _inner(arch: Architecture) -> tuple[int, ...]:
    return (arch.hidden,) if arch.hidden else ()


def _rnn(arch: Architecture) -> Complexity:
    d = arch.width
    net = mlp_operations(2 * d, *_inner(arch), d)
    return Complexity(arch, "h_{k-1}", d, "d", 2 * net + d, "2 tM(2d, w, d) + d", 0)


def _ssm(arch: Architecture) -> Complexity:
    d = arch.width
    net = mlp_operations(2 * d, *_inner(arch), d)
    if arch.transition == "constant":
        t, formula = 4 * d * d - d + net + d, "4d² − d + tM(2d, w, d) + d"
    else:
        t, formula = 2 * d**3 + 4 * d * d + net + d, "2d³ + 4d² + tM(2d, w, d) + d"
    return Complexity(arch, "h_{k-1}", d, "d", t, formula, 0)


def _sums(arch: Architecture) -> tuple[str, int, str]:
    """What linear attention keeps."""
    p = arch.width * (arch.head_width + 1)
    return "S = Σ v φ(k)ᵀ and z = Σ φ(k), per head", p, "d (d_h + 1)"


def _tokens(arch: Architecture, k: int) -> tuple[str, int, str]:
    """What softmax attention keeps."""
    return "keys and values of the first k − 1 tokens", 2 * arch.width * (k - 1), "2d (k − 1)"


def _linear(arch: Architecture) -> Complexity:
    d, d_h = arch.width, arch.head_width
    t = 6 * d * d + 2 * d * d_h + 9 * d - arch.heads + mlp_operations(d, *_inner(arch), d)
    exponentials = 2 * d if arch.feature == "elu" else 0
    return Complexity(arch, *_sums(arch), t, "6d² + 2d d_h + 9d − H + tM(d, w, d)", exponentials)


def _softmax(arch: Architecture, k: int) -> Complexity:
    d, H = arch.width, arch.heads
    t = 6 * d * d - d + (4 * d + H) * k - H + mlp_operations(d, *_inner(arch), d)
    formula = "6d² − d + (4d + H) k − H + tM(d, w, d)"
    return Complexity(arch, *_tokens(arch, k), t, formula, H * k, position=k)


def _gru(arch: Architecture) -> Complexity:
    d = arch.width
    return Complexity(arch, "h_{k-1}", d, "d", 12 * d * d + 16 * d, "6d (d + d) + 16d", 3 * d)


def _pre_ln_linear(arch: Architecture) -> Complexity:
    d, d_h, w = arch.width, arch.head_width, arch.hidden
    gelu = arch.activation == "gelu"
    t = 8 * d * d + 2 * d * d_h + 23 * d + 4 * d * w + (4 if gelu else 1) * w + 6
    formula = f"8d² + 2d d_h + 23d + 4dw + {'4w' if gelu else 'w'} + 6"
    erfs = w if gelu else 0
    return Complexity(arch, *_sums(arch), t, formula, 2 * d, square_roots=2, error_functions=erfs)


def _bert(arch: Architecture, k: int) -> Complexity:
    d, H, w = arch.width, arch.heads, arch.hidden
    gelu = arch.activation == "gelu"
    t = 8 * d * d + (4 * d + H) * k - H + 17 * d + 6 + 4 * d * w + (4 if gelu else 1) * w
    formula = f"8d² + (4d + H) k − H + 17d + 6 + 4dw + {'4w' if gelu else 'w'}"
    erfs = w if gelu else 0
    return Complexity(
        arch, *_tokens(arch, k), t, formula, H * k, 2, error_functions=erfs, position=k
    )


def _mamba2(arch: Architecture) -> Complexity:
    d, H, N, c, v = arch.width, arch.heads, arch.state, arch.conv_channels, arch.conv
    t = 6 + 16 * d + (2 * d - 1) * (2 * d + 2 * N + H) + (2 * v + 4) * c + 6 * H
    return Complexity(
        arch,
        kept="the state (d × N) and the last v − 1 inputs of the convolution",
        dimension=d * N + (v - 1) * c,
        dimension_formula="dN + (v − 1) c",
        operations=t + 5 * d * N + 2 * d * d,
        operations_formula="6 + 16d + (2d − 1)(2d + 2N + H) + (2v + 4)c + 6H + 5dN + 2d²",
        exponentials=c + 2 * H + d,
        square_roots=2,
        logarithms=H,
    )


_FORMULAS = {
    ("formal", "rnn"): _rnn,
    ("formal", "ssm"): _ssm,
    ("formal", "linear"): _linear,
    ("trained", "gru"): _gru,
    ("trained", "linear"): _pre_ln_linear,
    ("trained", "mamba2"): _mamba2,
}
