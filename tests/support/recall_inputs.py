"""Every input of a recall task, and explicit weights run on each of them in balls; further weights,
for induction in one recurrent layer."""

from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
from flint import arb, arb_mat, ctx

from ithbit.theory.gadgets import affine, two_step
from ithbit.theory.layers import LinearAttention, Rnn, SoftmaxAttention, Ssm, matrix
from ithbit.theory.recall.weights import RecallSolution

# The tokens of an input, its answer, and the answers to compare, as rows of the output matrix.
Question = tuple[tuple[int, ...], int, range]


def every_input(solution: RecallSolution) -> Iterator[Question]:
    """Every input of the task at this size."""
    n, values = solution.n, solution.task.values or solution.n
    name, symbols = solution.task.name, range(1, values + 1)
    if name == "copy":
        for text in product(symbols, repeat=n):
            for done in range(n):
                yield (*text, 0, *text[:done]), text[done] - 1, range(values)
    elif name == "mqar":
        keys = len(solution.output) - values
        for chosen in permutations(range(1, keys + 1), n):
            for stored in product(range(keys, keys + values), repeat=n):
                table = list(zip(chosen, stored, strict=True))
                pairs = [each for key, row in table for each in (key, row + 1)]
                for key, row in table:
                    yield (*pairs, key), row, range(keys, keys + values)
    else:
        for text in product(symbols, repeat=2 * n if name == "induction" else 2 * n - 2):
            for query in set(text):
                last = max(k for k, symbol in enumerate(text) if symbol == query)
                yield (*text, query), (*text, query)[last + 1] - 1, range(values)


def embed(solution: RecallSolution, tokens: tuple[int, ...]) -> np.ndarray:
    """The tokens of one input as vectors."""
    first = len(solution.embedding)
    x = solution.embedding[np.arange(min(len(tokens), first)), np.array(tokens[:first]) - 1]
    if solution.again is None:
        return x
    rest = solution.again[np.arange(len(tokens) - first), list(tokens[first:])]
    return np.concatenate([x, rest])


def least_margin(solution: RecallSolution) -> float:
    """The smallest margin over every input, from below."""
    least = np.inf
    with ctx.workprec(100):
        for tokens, answer, allowed in every_input(solution):
            x = arb_mat(embed(solution, tokens).tolist())
            for layer in solution.layers:
                x = run(layer, x)
            logits = (x * arb_mat(solution.output.T.tolist())).tolist()[-1]
            margins = [logits[answer] - logits[v] for v in allowed if v != answer]
            least = min(least, *(float(margin.lower()) for margin in margins))
    return least


def net_of(net, x):
    for depth, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        if depth:
            x = arb_mat([[value.max(arb(0)) for value in row] for row in x.tolist()])
        x = x * arb_mat(weight.T.tolist()) + arb_mat([bias.tolist()] * x.nrows())
    return x


def run(layer, x):
    """A layer on rows of balls."""
    if isinstance(layer, SoftmaxAttention | LinearAttention):
        return net_of(layer.net, x + attended(layer, x))
    h = arb_mat([layer.h0.tolist() if isinstance(layer, Ssm) else [0.0] * layer.d_out])
    rows = []
    for row in x.tolist():
        token = arb_mat([row])
        if isinstance(layer, Ssm):
            A = arb_mat(h.ncols(), h.ncols(), net_of(layer.A, token).tolist()[0])
            h = h * A.transpose() + net_of(layer.B, token)
        else:
            h = net_of(layer.N1, arb_mat([row + h.tolist()[0]]))
        rows += net_of(layer.readout, arb_mat([row + h.tolist()[0]])).tolist()
    return arb_mat(rows)


def attended(layer, x):
    """The average of the values at every token."""
    keys, queries = (x * arb_mat(weight.T.tolist()) for weight in (layer.K, layer.Q))
    linear = isinstance(layer, LinearAttention)
    if linear:
        keys, queries = (
            arb_mat([[v.max(arb(0)) + v.min(arb(0)).exp() for v in row] for row in m.tolist()])
            for m in (keys, queries)
        )
    weights = (queries * keys.transpose()).tolist()
    for t, row in enumerate(weights):
        row[:] = [v if linear else v.exp() for v in row]
        if layer.causal:
            row[t + 1 :] = [arb(0)] * (len(row) - t - 1)
        mass = sum(row, arb(0))
        row[:] = [v / mass for v in row]
    return arb_mat(weights) * (x * arb_mat(layer.V.T.tolist()))


def successors(task, family: str, n: int) -> RecallSolution:
    """Induction over a fixed alphabet by one RNN or SSM layer, as in the head of `verdicts`."""
    K, length = task.values, 2 * n + 1
    d, unit, a_b = K * K + K, np.eye(2 * K * K + 2 * K), np.arange(K * K)
    table = np.zeros((length, K, d))
    table[:, np.arange(K), K * K + np.arange(K)] = 1.0
    if family == "ssm":
        table[:, np.arange(K), np.arange(K)] = 2.0 ** np.arange(1, length + 1)[:, None]
    x_a, x_b = unit[K * K + a_b // K], unit[K * K + a_b % K]
    before, entry = unit[d + K * K + a_b // K], unit[d + a_b]
    sums = np.zeros((d, K * K))
    sums[a_b % K, a_b] = 1.0
    if family == "rnn":
        hidden = np.concatenate([entry - before, before + x_b, unit[K * K : d]])
        shifts = np.concatenate([np.zeros(K * K), -np.ones(K * K), np.zeros(K)])
        put = np.zeros((d, 2 * K * K + K))
        put[a_b, a_b] = put[a_b, K * K + a_b] = 1.0
        put[K * K :, 2 * K * K :] = np.eye(K)
        step = two_step(hidden.tolist(), shifts.tolist(), put.tolist(), [0.0] * d)
        read = two_step((entry + x_a).tolist(), [-1.0] * K * K, sums.tolist(), [0.0] * d)
        layer = Rnn(step, read)
    else:
        A, start, keep, large = np.zeros((d, d, d)), np.zeros((d, d)), np.zeros((d, d)), 2.0**length
        A[a_b, K * K + a_b // K, a_b % K] = 1.0
        start[a_b, a_b] = 1.0
        keep[K * K :, K * K :] = np.eye(K)
        hidden, C = entry + 2 * large * x_a, [-2 * large] * K * K
        layer = Ssm(
            affine(A.reshape(d * d, d).tolist(), start.ravel().tolist()),
            affine(keep.tolist(), [0.0] * d),
            two_step(hidden.tolist(), C, sums.tolist(), [0.0] * d),
            matrix([0.0] * d, 1),
        )
    output = np.zeros((K, d))
    output[:, :K] = np.eye(K)
    return RecallSolution(task, family, n, (layer,), matrix(table, 3), matrix(output))
