"""Weights of a trained architecture that are claimed to solve a task, named as in `models/`.

Where `Solution` holds the paper's formal layers, this holds the trained blocks: BERT, pre-LN linear
attention, `nn.GRU` and Mamba2, with the experiments' token features and polynomial positions. The
weights are float64 numbers under the names that `models/classifier.py` gives its parameters, so
they load into it, into the libraries' own modules and into a run folder. The margin of an input is
the logit if the answer is 1 and minus the logit if it is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ithbit.errors import raise_problems
from ithbit.families import FAMILIES, Task
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens
from ithbit.theory.layers import Array, FloatArray, Trace
from ithbit.theory.trained_blocks import Params, forward, shapes


class Column(IntEnum):
    """The columns of `embed`: a token's features."""

    BIT, QUERY, END, VALUE, FRACTION, SQUARE = range(6)


@dataclass(frozen=True, eq=False)
class TrainedSolution:
    """A spec and its weights; `theorem` and `variant` as in `Solution`."""

    spec: ModelSpec
    weights: dict[str, FloatArray]
    theorem: str
    variant: str = "own"

    def __post_init__(self) -> None:
        wanted = shapes(self.spec)
        problems = [f"there is no parameter {name!r}" for name in self.weights.keys() - wanted]
        problems += [f"the parameter {name!r} is missing" for name in wanted - self.weights.keys()]
        for name in wanted.keys() & self.weights.keys():
            value = self.weights[name]
            if value.shape != wanted[name]:
                problems.append(f"{name} must have shape {wanted[name]}, got {value.shape}")
            elif not np.isfinite(value).all():
                problems.append(f"{name} holds a number that is not finite")
        if self.spec.positions != "polynomial":
            problems.append(f"the positions must be polynomial, got {self.spec.positions!r}")
        raise_problems(f"weights of {self.spec.task} by {self.spec.family}", sorted(problems))

    @property
    def task(self) -> Task:
        return self.spec.task

    @property
    def family(self) -> str:
        return self.spec.family

    @property
    def n_bits(self) -> int:
        return self.spec.n_bits

    @property
    def depth(self) -> int:
        return self.spec.n_layers

    @property
    def width(self) -> int:
        return self.spec.d_model

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of parameters of each block."""
        return tuple(
            sum(
                value.size
                for name, value in self.weights.items()
                if name.startswith(f"blocks.{k}.")
            )
            for k in range(self.depth)
        )

    @property
    def n_tokens(self) -> int:
        return n_tokens(self.task, self.n_bits)

    @property
    def run_cost(self) -> int:
        """Roughly how many numbers running one input computes."""
        if FAMILIES[self.family].attention and self.depth > 1:
            return 2 * self.n_tokens**2
        a_number = 4 * self.spec.d_state if self.family == "mamba2" else 40
        return self.n_tokens * self.width * a_number

    def tokens(self, bits: NDArray[Any], index: NDArray[Any], dtype: Any = np.float64) -> Array:
        """The embedded tokens of a batch of inputs, before any block: batch token dim."""
        n, last = self.n_bits, self.n_tokens - 1
        features = np.zeros((len(bits), last + 1, 6), dtype)
        start, query = (0, n) if self.task == "rhi" else (1, 0)
        features[:, start : start + n, Column.BIT] = 1
        features[:, start : start + n, Column.VALUE] = bits
        features[:, query, Column.QUERY] = 1
        features[:, query, Column.FRACTION] = (index - 1).astype(dtype) / dtype(n)
        features[:, query, Column.SQUARE] = features[:, query, Column.FRACTION] ** 2
        if self.task == "lhi":
            features[:, -1, Column.END] = 1
        p = np.arange(last + 1).astype(dtype) / dtype(last)
        places = np.stack([p, p * p], -1) @ self.weights["positions.polynomial"].astype(dtype).T
        return features @ self.weights["embed"].astype(dtype).T + places

    def logits(self, bits: NDArray[Any], index: NDArray[Any], dtype: Any = np.float64) -> Array:
        """The logit of answer 1 for a batch of inputs. *Observed*."""
        params = self._params(dtype)
        x, _ = forward(params, self.spec, self.tokens(bits, index, dtype), last=True)
        logits: Array = x[:, -1] @ params["head.weight"][0] + params["head.bias"][0]
        return logits

    def margins(self, bits: NDArray[Any], index: NDArray[Any], dtype: Any = np.float64) -> Array:
        """The logit, with its sign flipped where the answer is 0. *Observed*."""
        answer = bits[np.arange(len(bits)), index.astype(int) - 1].astype(dtype)
        margins: Array = self.logits(bits, index, dtype) * (2 * answer - 1)
        return margins

    def trace(self, bits: Sequence[int], index: int) -> tuple[Array, tuple[Trace, ...]]:
        """The embedded tokens of one input and what every block did with them, in float64."""
        x = self.tokens(np.array([bits]), np.array([index]))
        _, traces = forward(self._params(np.float64), self.spec, x)
        return x, traces

    def _params(self, dtype: Any) -> Params:
        return {name: value.astype(dtype, copy=False) for name, value in self.weights.items()}
