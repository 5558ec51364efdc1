"""What float32 and float64 runs of a construction do: *observed*, never certified.

A certificate speaks of real arithmetic. Rounding is a different matter: positions must be exact in
the float type, and scores must keep their gaps. `float_runs` runs a few inputs in each type, and
`SAFE_N` holds the largest n at which every input tried was right, as measured with `measure_safe`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ithbit.theory.solution import Solution

_BUDGET = 3e7  # numbers of attention (or states) that one spot check may compute


@dataclass(frozen=True)
class FloatRun:
    """A spot check: how many inputs were run, how many were wrong, and the smallest margin."""

    dtype: str
    inputs: int
    wrong: int
    margin: float

    def sentence(self) -> str:
        if self.wrong:
            return f"{self.wrong} of {self.inputs} inputs run were wrong (observed)"
        return f"{self.inputs} inputs run, all right, smallest margin {self.margin:.6g} (observed)"

    def to_json(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "inputs": self.inputs,
            "wrong": self.wrong,
            "smallest_margin": self.margin if np.isfinite(self.margin) else None,
            "kind": "observed",
        }


def float_runs(solution: Solution, seed: int = 0) -> tuple[FloatRun, FloatRun]:
    """A few inputs in float32 and in float64: each with small, middle and large index.

    >>> from ithbit.theory.constructions import construct
    >>> [run.wrong for run in float_runs(construct("rhi", "softmax-full", 16))]
    [0, 0]
    """
    bits, index = spot_inputs(solution, seed)
    runs = []
    for dtype in (np.float32, np.float64):
        with np.errstate(all="ignore"):
            margins = solution.margins(bits, index, dtype).astype(np.float64)
        worst = np.where(np.isnan(margins), -np.inf, margins)
        wrong = int((worst <= 0).sum())
        runs.append(FloatRun(np.dtype(dtype).name, len(bits), wrong, float(worst.min())))
    return runs[0], runs[1]


def spot_inputs(solution: Solution, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bits and indices for a spot check: random strings, strings of one value, spread indices."""
    n, rng = solution.n_bits, np.random.default_rng(seed)
    deep_softmax = any(layer.kind == "softmax" for layer in solution.layers[:-1])
    cost = solution.n_tokens ** (2 if deep_softmax else 1) * (1 if deep_softmax else 30)
    count = int(np.clip(_BUDGET / cost, 2, 64))
    index = np.unique(np.linspace(1, n, count).round().astype(int))[::-1]
    index = np.resize(index, count)
    bits = rng.integers(0, 2, (count, n), dtype=np.uint8)
    bits[::4] = 1
    # Both answers alternate, so that neither is tried on one kind of index only.
    bits[np.arange(count), index - 1] = np.arange(count) % 2
    return bits, index
