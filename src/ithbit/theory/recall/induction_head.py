"""MQAR and induction by two softmax layers of width 7, full or causal: an induction head.

Both are one task: symbols 1 … S, m tokens, and the last is a symbol that has occurred before; what
followed it when it occurred last? For MQAR the symbols are its keys, then its values.

    embedding   symbol s at position t -> (t, t^2, 1, s, s^2, 0, 0)
    layer 1     score of l at t = beta (2 (t - 1) l - l^2), values (s, s^2), into the last two
                coordinates; N = identity
    layer 2     score of t at the last token, q = gamma (2 q p - p') + delta t, with p, p' the last
                two coordinates at t; value s, added to coordinate 3; N: y -> (y_3 - 1, 1, 0, ...)
    output      v y_1 - v^2 / 2 y_2

Layer 1 brings to every token the symbol before it, layer 2 finds the last token after a q. With
eps = 2 sum_{D>=1} e^(-beta D^2) and eta = eps (S - 1)^2 the margin is at least 1/2 - err,

    err = (m - 1) (S - 1) e^-c,   c = min(delta - gamma eta, gamma (1 - eps - eta) - delta (m - 1)),

and at least 3/8 for every m >= 2 and S >= 2 if beta >= ln(17 m S^2), delta >= (4/3) ln(8 m S) and
gamma = 2 m delta. docs/recall.md has the proof. The weights here are integers: the bound is about
them as they are stored.
"""

import math

import numpy as np
from flint import arb, ctx

from ithbit.errors import SpecError, as_int
from ithbit.theory.certifiers.exact import Rational, exact, need
from ithbit.theory.gadgets import affine
from ithbit.theory.layers import FloatArray, SoftmaxAttention, matrix
from ithbit.theory.recall.tasks import Recall
from ithbit.theory.recall.weights import RecallSolution, checked_size, digits

WIDTH = 7
EVERY_SIZE = "3/8"
_PRECISION = 100
Scales = tuple[float, float, float]  # beta, gamma, delta: the free weights


def scales(tokens: int, symbols: int) -> Scales:
    """Integers large enough for the proof at every size."""
    delta = math.ceil(4 / 3 * math.log(8 * tokens * symbols) + 1e-9)
    beta = math.ceil(math.log(17 * tokens * symbols**2) + 1e-9)
    return beta, 2 * tokens * delta, delta


def sizes(task: Recall, n: int) -> tuple[int, int]:
    """The tokens of an input, the last one included, and the symbols: MQAR has n keys."""
    tokens = 2 * n + 1 if task.values else 2 * n - 1
    return tokens, (task.values or n) + (n if task.name == "mqar" else 0)


def induction_head(
    task: Recall, family: str, n: int, given: Scales | None = None
) -> RecallSolution:
    """The weights for n pairs or an alphabet of n symbols.

    >>> from ithbit.theory.recall.tasks import recall
    >>> induction_head(recall("mqar", 4), "softmax-causal", 8).width
    7
    """
    if task.name not in ("mqar", "induction", "induction-growing"):
        raise SpecError(f"an induction head is for mqar and induction, not {task.name}")
    if family not in ("softmax-full", "softmax-causal"):
        raise SpecError(f"these weights are for softmax attention, not {family}")
    tokens, symbols = sizes(task, as_int("n", n))
    checked_size(task, n, symbols, tokens, WIDTH)
    causal, (beta, gamma, delta) = family == "softmax-causal", given or scales(tokens, symbols)
    t = np.arange(1, tokens + 1, dtype=np.float64)[:, None]
    s = np.arange(1, symbols + 1, dtype=np.float64)[None, :]
    columns = np.broadcast_arrays(t, t**2, 1.0, s, s**2, 0.0, 0.0)
    previous = SoftmaxAttention(
        causal,
        K=_sparse({(0, 0): 1, (1, 1): 1}),
        Q=_sparse({(0, 0): 2 * beta, (0, 2): -2 * beta, (1, 2): -beta}),
        V=_sparse({(5, 3): 1, (6, 4): 1}),
        net=affine(np.eye(WIDTH).tolist(), [0.0] * WIDTH),
    )
    match = SoftmaxAttention(
        causal,
        K=_sparse({(0, 5): 1, (1, 6): 1, (2, 0): 1}),
        Q=_sparse({(0, 3): 2 * gamma, (1, 2): -gamma, (2, 2): delta}),
        V=_sparse({(2, 3): 1}),
        net=affine(_sparse({(0, 2): 1}).tolist(), [-1.0, 1.0] + [0.0] * (WIDTH - 2)),
    )
    embedding = matrix(np.stack(columns, axis=-1), 3)
    layers, output = (previous, match), digits(symbols, WIDTH, start=1)
    return RecallSolution(task, family, n, layers, embedding, output)


def _sparse(entries: dict[tuple[int, int], float]) -> FloatArray:
    found = np.zeros((WIDTH, WIDTH))
    for place, value in entries.items():
        found[place] = value
    return matrix(found)


def given_scales(solution: RecallSolution) -> Scales:
    """The scales of an induction head, if its other weights are as they should be."""
    queries = [each.Q for each in solution.layers if isinstance(each, SoftmaxAttention)]
    need(len(queries) == 2, "it needs two softmax layers")
    need({each.shape for each in queries} == {(WIDTH, WIDTH)}, f"the width is not {WIDTH}")
    return -float(queries[0][1, 2]), -float(queries[1][1, 2]), float(queries[1][2, 2])


def margin(tokens: int, symbols: int, chosen: Scales) -> Rational:
    """1/2 - err with these scales, as a ball."""
    m, S = tokens, symbols
    need(all(math.isfinite(x) and x > 0 for x in chosen), "a scale is not positive")
    with ctx.workprec(_PRECISION):
        beta, gamma, delta = (arb(exact(x)) for x in chosen)
        eps = 2 * (-beta).exp() / (1 - (-3 * beta).exp())
        eta = eps * (S - 1) ** 2
        c = (delta - gamma * eta).min(gamma * (1 - eps - eta) - delta * (m - 1))
        return arb(1) / 2 - (m - 1) * (S - 1) * (-c).exp()
