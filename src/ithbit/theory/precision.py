"""What float32 and float64 runs of a construction do: *observed*, never certified.

A certificate is about real arithmetic. Rounding is a different matter: positions must be exact in
the float type, and scores must keep their gaps. `float_runs` runs a few inputs in each type;
`SAFE_N` records up to which n many inputs were right, as measured by `experiments/safe_n.py`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ithbit.families import FAMILIES
from ithbit.tasks.indexing import all_inputs
from ithbit.theory.layers import Array, FloatArray
from ithbit.theory.solution import AnySolution, TrainedSolution

OBSERVED = "observed, not certified"  # the mark of float runs in a certificate
_BUDGET = 3e7  # numbers of attention (or states) that one spot check may compute


@dataclass(frozen=True)
class SafeLengths:
    """Every input tried was right for lengths up to `right`; some were wrong from `wrong` on.

    `wrong` is None if no length tried went wrong: then `right` is only the longest one tried.
    """

    right: int
    wrong: int | None = None

    def sentence(self) -> str:
        """The finding in words.

        >>> SafeLengths(1424, 1432).sentence(), SafeLengths(8192).sentence()
        ('right up to n = 1424, wrong from 1432 on', 'right as far as tried, n = 8192')
        """
        if self.wrong is None:
            return f"right as far as tried, n = {self.right}"
        return f"right up to n = {self.right}, wrong from {self.wrong} on"


# Per variant (float32, float64); borders were found by bisection to one per cent.
# parabola: k² + 1/4 and the score gap 1/(2i²) outgrow 24 bits. cosine: 1 − cos 710 = 1.8e-9.
# scalar: the tent is 2M times a difference of numbers up to M, which must stay below 2^25.
SAFE_N: dict[str, tuple[SafeLengths, SafeLengths]] = {
    "parabola": (SafeLengths(1424, 1432), SafeLengths(8192)),
    "cosine": (SafeLengths(708, 712), SafeLengths(8192)),
    "softmax marker": (SafeLengths(2048), SafeLengths(2048)),
    "linear marker": (SafeLengths(8192), SafeLengths(8192)),
    "heavy": (SafeLengths(8192), SafeLengths(8192)),
    "selective": (SafeLengths(8192), SafeLengths(8192)),
    "time-invariant": (SafeLengths(8192), SafeLengths(8192)),
    "scalar": (SafeLengths(2880, 2896), SafeLengths(8192)),
    "pair": (SafeLengths(8192), SafeLengths(8192)),
    "latch": (SafeLengths(8192), SafeLengths(8192)),
    # Trained blocks at width 16; `experiments/trained_reach.py` doubled n up to 1,024.
    "trained softmax": (SafeLengths(1024), SafeLengths(1024)),
    "trained linear": (SafeLengths(512, 1024), SafeLengths(1024)),
    "trained gru": (SafeLengths(1024), SafeLengths(1024)),
    "trained mamba2": (SafeLengths(128, 256), SafeLengths(1024)),
}


@dataclass(frozen=True)
class FloatRun:
    """A spot check: how many inputs were run, how many were wrong, and the smallest margin."""

    dtype: str
    inputs: int
    wrong: int
    margin: float

    def sentence(self) -> str:
        if self.wrong:
            return f"{self.wrong} of {self.inputs} inputs run were wrong"
        return f"{self.inputs} inputs run, all right, smallest margin {self.margin:.6g}"


def safe_n(solution: AnySolution, dtype: str) -> SafeLengths | None:
    """Up to which n runs of a construction in this type were right; None if it was not measured.
    It goes by the name of the variant: weights that only bear it were not measured either."""
    key = solution.variant
    if isinstance(solution, TrainedSolution):
        key = f"trained {FAMILIES[solution.family].kind}" if solution.width == 16 else ""
    elif key == "marker":
        key = f"{solution.layers[0].kind} marker"
    return SAFE_N[key][0 if dtype == "float32" else 1] if key in SAFE_N else None


def comparable_margins(
    solution: AnySolution, bits: NDArray[Any], index: NDArray[Any], dtype: Any
) -> FloatArray:
    """Margins; NaN and infinities, which wrong weights may give and are never right, as −inf."""
    with np.errstate(all="ignore"):
        margins = solution.margins(bits, index, dtype).astype(np.float64)
    return np.where(np.isfinite(margins), margins, -np.inf)


def smallest_margin(solution: AnySolution, dtype: Any = np.float64) -> float:
    """The smallest margin over all n · 2^n inputs, run one by one; for n up to about 12.

    *Exact* if `dtype` is object; in floats *observed*: every input was run, with rounding.

    >>> from ithbit.theory.constructions import construct
    >>> smallest_margin(construct("lhi", "rnn", 3))
    7.0
    """
    batch = max(1, 2_000_000 // solution.n_tokens**2)
    return min(
        float(comparable_margins(solution, bits, index, dtype).min())
        for bits, index in all_inputs(solution.n_bits, batch)
    )


def every_input(solution: AnySolution) -> float | None:
    """The smallest margin over all inputs in float64, where that is quick: n up to 10."""
    return smallest_margin(solution) if solution.n_bits <= 10 else None


def observed(solution: AnySolution, is_ours: bool) -> dict[str, Any]:
    """What was seen of float execution, per type, as plain JSON values; at other n only if these
    are the weights of a construction.

    >>> from ithbit.theory.constructions import construct
    >>> observed(construct("lhi", "rnn", 8), True)["float32"]["right_up_to_n"]
    2880
    """
    seen: dict[str, Any] = {"kind": OBSERVED}
    n, every = solution.n_bits, every_input(solution)
    if every is not None:
        seen["every_input"] = {"inputs_run": n << n, "smallest_margin": finite(every)}
    for run in float_runs(solution):
        safe = safe_n(solution, run.dtype) if is_ours else None
        seen[run.dtype] = {
            "inputs_run": run.inputs,
            "wrong": run.wrong,
            "smallest_margin": finite(run.margin),
            "right_up_to_n": safe and safe.right,
            "wrong_from_n": safe and safe.wrong,
        }
    return seen


def float_runs(solution: AnySolution) -> tuple[FloatRun, FloatRun]:
    """A few inputs run in float32 and in float64, with indices spread over 1 … n.

    >>> from ithbit.theory.constructions import construct
    >>> [run.wrong for run in float_runs(construct("rhi", "softmax-full", 16))]
    [0, 0]
    """
    bits, index = spot_inputs(solution)
    runs = []
    for dtype in (np.float32, np.float64):
        worst = comparable_margins(solution, bits, index, dtype)
        wrong = int((worst <= 0).sum())
        runs.append(FloatRun(np.dtype(dtype).name, len(bits), wrong, float(worst.min())))
    return runs[0], runs[1]


def spot_inputs(solution: AnySolution) -> tuple[Array, Array]:
    """Bits and indices for a spot check: random strings, every fourth of ones; spread indices."""
    n, rng = solution.n_bits, np.random.default_rng(0)
    count = int(np.clip(_BUDGET / solution.run_cost, 2, 256))
    index = np.unique(np.linspace(1, n, count).round().astype(int))[::-1]
    index = np.resize(index, count)
    bits = rng.integers(0, 2, (count, n), dtype=np.uint8)
    bits[::4] = 1
    # The answers alternate, so that neither is tried on one kind of index only.
    bits[np.arange(count), index - 1] = np.arange(count) % 2
    return bits, index


def finite(margin: float) -> float | None:
    """JSON has no infinities."""
    return margin if np.isfinite(margin) else None
