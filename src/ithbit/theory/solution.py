"""Weights that are claimed to solve a task (Def. 4), of formal layers or of trained blocks.

A *solution* makes alpha_{sigma_i} > alpha_{1 - sigma_i}, strictly, for every one of the n · 2^n
inputs, where alpha = A y_last. Its *margin* on one input is alpha_{sigma_i} − alpha_{1 − sigma_i}.
Nothing here is certified: margins computed in floats are *observed*; see `certificate` for proofs.

`Solution` holds the paper's formal layers, an input-position embedding and an output matrix.
`TrainedSolution` holds the trained blocks: BERT, pre-LN linear attention, `nn.GRU` and Mamba2, with
the experiments' token features and polynomial positions. Its weights are float64 numbers under the
names that `models/classifier.py` gives its parameters, so they load into it, into the libraries'
own modules and into a run folder. There alpha is (0, logit).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ithbit.errors import SpecError, raise_problems
from ithbit.families import FAMILIES, Task
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens
from ithbit.theory.layers import (
    Array,
    FloatArray,
    Gru,
    LinearAttention,
    Rnn,
    SoftmaxAttention,
    Ssm,
    Trace,
    like,
    matrix,
)
from ithbit.theory.trained_blocks import Params, forward, shapes


@dataclass(frozen=True, eq=False)
class Embedding:
    """The table p(token, position) in R^d: one row per index value, per (position, bit), and end.

    `end` is None for RHI, which has no end token.
    """

    index: FloatArray  # (n, d): row i − 1 is the token "index i"
    bit: FloatArray  # (n, 2, d): row (k − 1, b) is the token at position k holding the bit b
    end: FloatArray | None  # (d,)

    def __post_init__(self) -> None:
        n, d = self.index.shape
        if self.bit.shape != (n, 2, d) or (self.end is not None and self.end.shape != (d,)):
            raise SpecError(
                f"the embedding of n = {n} bits in R^{d} needs a bit table of shape {(n, 2, d)} "
                f"and an end row of shape {(d,)}, got {self.bit.shape}"
                f"{'' if self.end is None else f' and {self.end.shape}'}"
            )

    @property
    def n_bits(self) -> int:
        return len(self.index)

    @property
    def d(self) -> int:
        return int(self.index.shape[1])

    def __call__(self, bits: NDArray[Any], index: NDArray[Any], dtype: Any = np.float64) -> Array:
        """The embedded tokens, `batch token dim`; `dtype` float32, float64 or object (exact)."""
        zero = np.zeros(0, dtype)
        rows = like(self.bit, zero)[np.arange(self.n_bits), bits.astype(int)]
        query = like(self.index, zero)[index.astype(int) - 1][:, None]
        if self.end is None:
            return np.concatenate([rows, query], axis=1)
        end = np.broadcast_to(like(self.end, zero), query.shape)
        return np.concatenate([query, rows, end], axis=1)


# Called with `last`, a layer computes the last token alone, all that a readout needs.
Layer = SoftmaxAttention | LinearAttention | Ssm | Rnn | Gru

# The layers of each family: kind, and whether the attention is causal.
_LAYERS: dict[str, tuple[str, bool | None]] = {
    name: (family.kind, family.causal) for name, family in FAMILIES.items() if family.attention
} | {name: (name, None) for name in ("ssm", "rnn", "gru")}


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights claimed to solve a task: embedding, layers, output matrix A, and the claim's source.

    `family` names the formal family (or `gru`), `theorem` the statement of the paper that promises
    such weights, `variant` which of our constructions this is.
    """

    task: Task
    family: str
    n_bits: int
    layers: tuple[Layer, ...]
    embedding: Embedding
    output: FloatArray  # (2, d)
    theorem: str
    variant: str = "own"

    def __post_init__(self) -> None:
        widths = [self.embedding.d]
        problems = []
        if self.n_bits < 1:
            problems.append(f"n must be at least 1, got {self.n_bits}")
        if self.embedding.n_bits != self.n_bits:
            problems.append(
                f"the embedding has {self.embedding.n_bits} positions for n = {self.n_bits}"
            )
        if (self.embedding.end is None) != (self.task == "rhi"):
            problems.append("LHI needs an end token and RHI has none")
        if not self.layers:
            problems.append("there must be at least one layer")
        for layer in self.layers:
            if layer.d_in != widths[-1]:
                problems.append(f"a layer of width {layer.d_in} follows width {widths[-1]}")
            widths.append(layer.d_out)
            found = (layer.kind, getattr(layer, "causal", None))
            if found != _LAYERS.get(self.family):
                problems.append(f"a layer of kind {found} is not a layer of {self.family!r}")
        if self.output.shape != (2, widths[-1]):
            problems.append(f"A must be 2 × {widths[-1]}, got shape {self.output.shape}")
        if not all(np.isfinite(part).all() for part in self.arrays()):
            problems.append("a weight is not a finite number")
        raise_problems(f"Solution {self.task} {self.family}", problems)

    def arrays(self) -> list[FloatArray]:
        """All numbers of these weights, in a fixed order."""
        return list(_arrays((self.embedding, self.layers, self.output)))

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def width(self) -> int:
        """The dimension d of the layers (the state's, for the GRU)."""
        return self.layers[-1].d_out

    @property
    def sizes(self) -> tuple[int, ...]:
        """The paper's size of each layer."""
        return tuple(layer.size for layer in self.layers)

    @property
    def n_tokens(self) -> int:
        return n_tokens(self.task, self.n_bits)

    @property
    def run_cost(self) -> int:
        """Roughly how many numbers running one input computes."""
        deep_softmax = any(layer.kind == "softmax" for layer in self.layers[:-1])
        return self.n_tokens**2 if deep_softmax else 30 * self.n_tokens

    def logits(self, bits: NDArray[Any], index: NDArray[Any], dtype: Any = np.float64) -> Array:
        """alpha = A y_last for a batch of inputs, in the arithmetic of `dtype`."""
        x = self.embedding(bits, index, dtype)
        for depth, layer in enumerate(self.layers, 1):
            x = layer(x, last=depth == self.depth)
        return x[:, -1] @ like(self.output, x).T

    def margins(self, bits: NDArray[Any], index: NDArray[Any], dtype: Any = np.float64) -> Array:
        """alpha_{sigma_i} − alpha_{1−sigma_i} for a batch of inputs. *Observed* if in floats."""
        alpha = self.logits(bits, index, dtype)
        answer = bits[np.arange(len(bits)), index.astype(int) - 1].astype(int)
        rows = np.arange(len(bits))
        return alpha[rows, answer] - alpha[rows, 1 - answer]

    def trace(self, bits: Sequence[int], index: int) -> tuple[Array, tuple[Trace, ...]]:
        """The embedded tokens of one input and what every layer did with them, in float64."""
        x = self.embedding(np.array([bits]), np.array([index]))
        embedded, traces = x, []
        for layer in self.layers:
            traces.append(layer.trace(x))
            x = traces[-1].output
        return embedded, tuple(traces)


def _arrays(part: Any) -> Iterator[FloatArray]:
    """The arrays in a part of a solution: an array, a tuple of parts, or their dataclass."""
    if isinstance(part, np.ndarray):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _arrays(each)
    elif is_dataclass(part):
        yield from _arrays(tuple(getattr(part, field.name) for field in fields(part)))


def embedding_of(index: Any, bit: Any, end: Any = None) -> Embedding:
    """The embedding with these numbers; without an `end` it is for RHI."""
    return Embedding(matrix(index), matrix(bit, 3), None if end is None else matrix(end, 1))


Parts = tuple[Embedding, Sequence[Layer], Any]  # and the output matrix


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

    def arrays(self) -> list[FloatArray]:
        """All numbers of these weights, in a fixed order."""
        return [self.weights[name] for name in sorted(self.weights)]

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
        return x[:, -1] @ params["head.weight"][0] + params["head.bias"][0]

    def margins(self, bits: NDArray[Any], index: NDArray[Any], dtype: Any = np.float64) -> Array:
        """The logit, with its sign flipped where the answer is 0. *Observed*."""
        answer = bits[np.arange(len(bits)), index.astype(int) - 1].astype(dtype)
        return self.logits(bits, index, dtype) * (2 * answer - 1)

    def trace(self, bits: Sequence[int], index: int) -> tuple[Array, tuple[Trace, ...]]:
        """The embedded tokens of one input and what every block did with them, in float64."""
        x = self.tokens(np.array([bits]), np.array([index]))
        _, traces = forward(self._params(np.float64), self.spec, x)
        return x, traces

    def _params(self, dtype: Any) -> Params:
        return {name: value.astype(dtype, copy=False) for name, value in self.weights.items()}


AnySolution = Solution | TrainedSolution
