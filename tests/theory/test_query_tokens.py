"""Queries of several tokens: stage lists against programs that take every step, and brute force."""

import math
from itertools import product

import numpy as np
import pytest
from tests.support.decisions.formal import finished, hidden
from tests.support.decisions.system import System, add, affine, dot, matvec, value_of
from tests.support.decisions.trained import (
    EVERY_OUTCOME,
    Signs,
    features,
    linear_state,
    split,
    sums,
)
from tests.theory.test_stages_formal import draw, layer_of, outputs

import ithbit
from ithbit.errors import SpecError
from ithbit.theory.architecture import architecture
from ithbit.theory.bounds import NoBoundError
from ithbit.theory.bounds.counting import Stage, log2_answers, n_star
from ithbit.theory.bounds.stages import Query, stages
from ithbit.theory.recall.tasks import recall

T = 3
BITS = 4


def recurrent(s, layers, tokens, states, at, signs):
    """RNN and SSM, layer by layer and step by step, up to the tests of one layer's last step."""
    xs = tokens
    for k, (layer, state) in enumerate(zip(layers, states, strict=True), start=1):
        h, out = s.fingerprint(state), []
        for j, x in enumerate(xs, start=1):
            last = j == len(xs)
            if hasattr(layer, "N1"):
                if at == (k, "N1") and last:
                    return hidden(layer.N1, [*x, *h])
                h, net, name = finished(layer.N1, [*x, *h], signs), layer.N2, "N2"
            else:
                if hasattr(layer, "A_bias"):
                    rows = [affine(a, b, x) for a, b in zip(layer.A, layer.A_bias, strict=True)]
                    moved, put = [dot(h, row) for row in rows], affine(layer.B, layer.B_bias, x)
                else:
                    moved, put = matvec(layer.A, h), matvec(layer.B, x)
                h, net, name = add(moved, put), layer.phi, "phi"
            if at == (k, name) and last:
                return hidden(net, [*x, *h])
            if k < len(layers) or last:
                out.append(finished(net, [*x, *h], signs))
        xs = out
    return xs[-1]


def linear(s, layers, tokens, states, at, signs):
    """Linear attention with ELU+1, likewise; the first layer's features are numbers."""
    xs = tokens
    for k, (layer, state) in enumerate(zip(layers, states, strict=True), start=1):
        H, seen, out = layer.heads, [], []
        target = k == (at[0] if at else len(layers))
        kept = None
        for j, x in enumerate(xs, start=1):
            last = j == len(xs)
            keys, queries, values = (matvec(m, x) for m in (layer.K, layer.Q, layer.V))
            if at == (k, "feature signs"):
                if last:
                    return [*queries, *keys]
                continue
            kept = kept or linear_state(s, state, H)
            seen.append((split(features(s, keys, signs), H), split(values, H)))
            if target and not last:
                continue
            query = split(features(s, queries, signs), H)
            a = []
            for head, ((S, z), q) in enumerate(zip(kept, query, strict=True)):
                den, num = dot(z, q), [dot(row, q) for row in S]
                for key, value in seen:
                    own = dot(key[head], q)
                    den = den + own
                    num = [u + own * v for u, v in zip(num, value[head], strict=True)]
                if target and H == 1:
                    # The denominator multiplies the tests.
                    x = [u * den + v for u, v in zip(x, num, strict=True)]
                    net = layer.net
                    return [
                        dot(row, x) + den * b
                        for row, b in zip(net.weights[0], net.biases[0], strict=True)
                    ] + ([0.0 * den] if len(net.weights) == 1 else [])
                w = s.inverse(den)
                a += [u * w for u in num]
            x = add(a, x)
            if at == (k, "hidden") and last:
                return hidden(layer.net, x)
            out.append([s.keep(u) for u in finished(layer.net, x, signs)])
        xs = out
    return xs[-1]


def product_of(factors):
    found = 1.0
    for factor in factors:
        found = found * factor
    return found


def over(net, which, X, D):
    """An affine map of X / D, times D."""
    rows = matvec(net.weights[which], X)
    return [u + D * b for u, b in zip(rows, net.biases[which], strict=True)]


def quotients(s, layers, tokens, states, at, signs):
    """Linear attention with ReLU+1, likewise; every token is a quotient X / D of polynomials."""
    xs = [(x, 1.0) for x in tokens]
    for k, (layer, state) in enumerate(zip(layers, states, strict=True), start=1):
        H, net, seen, out, kept = layer.heads, layer.net, [], [], None
        for j, (X, D) in enumerate(xs, start=1):
            last = j == len(xs)
            keys, queries = matvec(layer.K, X), matvec(layer.Q, X)
            if at == (k, "feature signs"):
                if last:
                    return [*queries, *keys], D
                continue
            if k == 1:
                key, query = (features(s, u, signs, "relu") for u in (keys, queries))
            else:  # phi times D
                key, query = ([D + u if signs.linear(u) else D for u in x] for x in (keys, queries))
            kept = kept or [
                ([s.fingerprint(row) for row in S], s.fingerprint(z)) for S, z in sums(state, H)
            ]
            seen.append((split(key, H), split(matvec(layer.V, X), H)))
            before = [E for _, E in xs[:j]]
            every = product_of(before)
            rest = [product_of(before[:i] + before[i + 1 :]) for i in range(j)]
            nums, dens = [], []
            for head, ((S, z), q) in enumerate(zip(kept, split(query, H), strict=True)):
                den, num = dot(z, q) * every, [dot(row, q) * every * every for row in S]
                for (keyed, value), r in zip(seen, rest, strict=True):
                    own = dot(keyed[head], q)
                    den = den + own * r
                    num = [u + own * v * (r * r) for u, v in zip(num, value[head], strict=True)]
                nums.append(num)
                dens.append(den)
            a = [u * product_of(dens[:h] + dens[h + 1 :]) for h in range(H) for u in nums[h]]
            X = [u * (rest[-1] * product_of(dens)) + v for u, v in zip(X, a, strict=True)]
            D = every * product_of(dens)
            if len(net.weights) > 1:
                X = over(net, 0, X, D)
                if at == (k, "hidden") and last:
                    return X, D
                X = [u if signs.on(u) else 0.0 * D for u in X]
            out.append((over(net, -1, X, D), D))
        xs = out
    return xs[-1]


def stacked(arch):
    """Layers, what they keep of a prefix, and tokens of a query."""
    layers = [layer_of(arch, k) for k in range(1, arch.n_layers + 1)]
    tokens, states = draw(1, BITS, arch.width), []
    for layer in layers:
        states.append(layer.fingerprint(tokens))
        tokens = outputs(layer, tokens)
    return layers, states, draw(2, T, arch.width)


def steps_of(listed, t):
    """The layer, the name and the step of every stage but the readout."""
    names = [stage.what for stage in listed[:-1]]
    for place, name in enumerate(names):
        layer, net = name.removeprefix("layer ").split(", ")
        j = names[: place + 1].count(name) if names.count(name) > 1 else t
        yield listed[place], (int(layer), net), j


RECURRENT = [
    (family, {"n_layers": L, "width": d, "hidden": w, "transition": transition})
    for family, transition in (("rnn", "affine"), ("ssm", "affine"), ("ssm", "constant"))
    for L, d, w in ((1, 2, 2), (2, 2, 3), (3, 1, 2), (3, 2, 1))
]


@pytest.mark.parametrize(("family", "sizes"), RECURRENT)
@pytest.mark.parametrize("t", [1, 2, T])
def test_recurrent_stages_are_what_the_program_counts(family, sizes, t):
    arch = architecture(family, **sizes)
    layers, states, tokens = stacked(arch)
    listed = stages("rhi", arch, 2, Query(t))
    for stage, at, j in steps_of(listed, t):
        systems = []
        for signs in EVERY_OUTCOME:
            systems.append(System())
            for test in recurrent(systems[-1], layers, tokens[:j], states, at, signs):
                systems[-1].test(test)
        assert max(len(s.parameters) for s in systems) == stage.parameters
        assert max(len(s.tests) for s in systems) == stage.tests
        assert max(s.measured_degree() for s in systems) == stage.degree, (stage, at, j)
    # The whole decision needs no other hidden layer: each one that is evaluated is a stage.
    nets = 2 if family == "rnn" else 1
    assert len(listed) - 1 == t * (nets * arch.n_layers - 1) + 1
    systems, logits = [], []
    for signs in EVERY_OUTCOME:
        systems.append(System())
        y = recurrent(systems[-1], layers, tokens[:t], states, None, signs)
        logits.append(dot(y, draw(7, arch.width)))
        systems[-1].test(logits[-1])
    assert max(len(s.parameters) for s in systems) == listed[-1].parameters
    assert max(s.measured_degree() for s in systems) == listed[-1].degree
    text = [*draw(1, BITS, arch.width), *tokens[:t]]
    for layer in layers:
        text = outputs(layer, text)
    assert value_of(logits[0]) == pytest.approx(dot(text[-1], draw(7, arch.width)), rel=1e-9)


@pytest.mark.parametrize(("L", "d", "H"), [(2, 2, 1), (2, 2, 2), (3, 1, 1), (3, 2, 2)])
@pytest.mark.parametrize("t", [1, 2, T])
def test_stages_of_linear_attention_with_elu_are_enough(L, d, H, t):
    """Exact but for the queries of earlier steps in the layer that is tested, which are unused."""
    arch = architecture("linear-causal", n_layers=L, width=d, heads=H, hidden=2)
    layers, states, tokens = stacked(arch)
    for stage, at, j in steps_of(stages("rhi", arch, 2, Query(t)), t):
        if at[0] == 1:
            continue
        systems = []
        for signs in EVERY_OUTCOME:
            systems.append(System())
            for test in linear(systems[-1], layers, tokens[:j], states, at, signs):
                systems[-1].test(test)
        assert max(len(s.parameters) for s in systems) == stage.parameters
        assert max(len(s.tests) for s in systems) == stage.tests
        assert max(len(s.implicit) for s in systems) == stage.implicit
        chain = max(len(s.chain) for s in systems)
        unused = d * (j - 1) if at[1] == "hidden" else 0
        assert chain == stage.chain - unused
        assert max(s.measured_degree() for s in systems) <= stage.degree


@pytest.mark.parametrize(
    ("L", "d", "H", "w"), [(2, 1, 1, 0), (2, 2, 1, 1), (2, 2, 2, 1), (3, 1, 1, 1)]
)
@pytest.mark.parametrize("t", [1, 2, T])
def test_stages_of_linear_attention_with_relu_are_what_the_program_counts(L, d, H, w, t):
    arch = architecture("linear-causal", n_layers=L, width=d, heads=H, hidden=w, feature="relu")
    layers, states, tokens = stacked(arch)
    listed = stages("rhi", arch, 2, Query(t))
    for stage, at, j in steps_of(listed, t):
        systems = []
        for signs in EVERY_OUTCOME if L == 2 else [Signs(True, True)]:
            systems.append(System())
            for test in quotients(systems[-1], layers, tokens[:j], states, at, signs)[0]:
                systems[-1].test(test)
        assert max(len(s.parameters) for s in systems) == stage.parameters
        assert max(len(s.tests) for s in systems) == stage.tests
        assert max(s.measured_degree() for s in systems) == stage.degree
    assert len(listed) == (L - 1) * t + (w > 0) * ((L - 1) * t + 1) + 1
    s = System()
    X, D = quotients(s, layers, tokens[:t], states, None, Signs())
    s.test(X[0])
    assert (len(s.parameters), s.measured_degree()) == (listed[-1].parameters, listed[-1].degree)
    text = [*draw(1, BITS, d), *tokens[:t]]
    for layer in layers:
        text = outputs(layer, text)
    assert [value_of(u) / value_of(D) for u in X] == pytest.approx(text[-1], rel=1e-9)


def gru(s, tokens, L, d):
    """nn.GRU with random weights, step by step, one test at the end."""
    states = [s.fingerprint(draw(30 + k, d)) for k in range(L)]
    for x in tokens:
        for k in range(L):
            h = states[k]
            of_x, of_h = (affine(draw(40 + k, 3 * d, d), draw(50 + k, 3 * d), u) for u in (x, h))
            er, ez = (
                [s.exp(-1.0 * (a + b)) for a, b in zip(of_x[part], of_h[part], strict=True)]
                for part in (slice(d), slice(d, 2 * d))
            )
            inner = [
                s.keep(a * (1.0 + e) + b, 1.0 + e)
                for a, b, e in zip(of_x[2 * d :], of_h[2 * d :], er, strict=True)
            ]
            E = [s.exp(2.0 * a) for a in inner]
            n = [s.keep(e - 1.0, e + 1.0) for e in E]
            x = [s.keep(a * e + old, 1.0 + e) for a, e, old in zip(n, ez, h, strict=True)]
            states[k] = x
    s.test(dot(x, draw(60, d)))


@pytest.mark.parametrize(("L", "d"), [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("t", [1, 2, T])
def test_the_stage_of_a_gru_is_what_the_program_counts(L, d, t):
    (stage,) = stages("rhi", architecture("gru", "trained", n_layers=L, width=d), 2, Query(t))
    first, second = System(), System()
    gru(first, draw(70, t, d), L, d)
    gru(second, draw(71, t, d), L, d)
    assert len(first.parameters) == stage.parameters
    assert len(first.implicit) == stage.implicit
    assert first.measured_degree() == stage.degree
    assert len(first.shared_with(second)) == stage.shared_chain
    assert len(first.chain) == stage.chain + stage.shared_chain


def on_a_line(net, query_words, thetas):
    """The answers of a one-layer RNN of width 1 at many states, one row per state."""
    N1, N2, readout = net
    found = []
    for word in query_words:
        h = thetas
        for x in word:
            h = sum(c * np.maximum(0, a * x + b * h + e) for a, b, e, c in N1)
        y = sum(c * np.maximum(0, a * word[-1] + b * h + e) for a, b, e, c in N2)
        found.append(y > readout)
    return np.stack(found, axis=1)


def tables(answers):
    return len(np.unique(answers @ (1 << np.arange(answers.shape[1]))))


@pytest.mark.parametrize("t", [1, 2, 3])
def test_no_rnn_of_width_1_has_more_answers_than_the_bound(t):
    """Answer vectors of random RNNs over a fine line of states; all queries of t tokens."""
    random = np.random.default_rng(t)
    thetas, most = np.linspace(-40, 40, 20_001), {}
    for w in (1, 2, 3):
        arch = architecture("rnn", width=1, hidden=w)
        for symbols in (1, 2) if t == 3 else (1, 2, 3):
            words = [*product(random.normal(size=symbols) * 3, repeat=t)]
            bound = log2_answers(stages("rhi", arch, 2, Query(t, symbols + 1)), len(words))
            for _ in range(12):
                net = random.normal(size=(w, 4)) * 2, random.normal(size=(w, 4)) * 2, 0.1
                count = tables(on_a_line(net, words, thetas))
                assert math.log2(count) <= bound
                most[w] = max(most.get(w, 0), count)
    assert most[3] > 2 + 2 * (t > 1)


def test_steps_unfold_the_state():
    """Words of t tokens that keep the state t - k times, then fold it k times by a tent map: the
    answers are t binary digits of the state, so all 2^t tables occur. The list of one token
    excludes that many queries; it would be wrong here."""
    t, w = 17, 3
    keep_or_fold = [(0.0, 1.0, 0.0, 1.0), (9.0, 1.0, -9.0, 1.0), (9.0, 4.0, -11.0, -1.0)]
    read = [(0.0, 1.0, 0.0, 1.0)]
    words = [(0.0,) * (t - k) + (1.0,) * k for k in range(t)]
    thetas = (np.arange(2**t) + 0.5) / 2**t
    answers = on_a_line((keep_or_fold, read, 0.5), words, thetas)
    assert tables(answers) == 2**t
    arch = architecture("rnn", width=1, hidden=w)
    assert n_star(stages("rhi", arch)) < t <= n_star(stages("rhi", arch, 2, Query(t, 2)))
    sizes = {"width": 1, "ff": w}
    assert ithbit.bound("rhi", "rnn", **sizes).n_star < t
    assert ithbit.bound("rhi", "rnn", **sizes, query_tokens=t).n_star >= t


def test_one_affine_layer_has_the_list_of_one_token():
    for family, sizes in (
        ("ssm", {}),
        ("ssm", {"transition": "constant", "hidden": 0}),
        ("linear-causal", {"heads": 2}),
        ("mamba2", {"model": "trained"}),
        ("linear-causal", {"model": "trained", "activation": "relu"}),
    ):
        arch = architecture(family, **sizes)
        assert stages("rhi", arch, 5, Query(10**6)) == stages("rhi", arch, 5)
    for family, sizes in (("rnn", {"n_layers": 2}), ("linear-causal", {"n_layers": 3})):
        arch = architecture(family, hidden=0, **sizes)
        if family == "rnn":
            assert stages("rhi", arch, 5, Query(7)) == stages("rhi", arch, 5)
        else:
            assert stages("rhi", arch, 5, Query(7)) != stages("rhi", arch, 5)


@pytest.mark.parametrize(
    ("t", "star"), [(1, 487), (2, 718), (4, 1195), (8, 2197), (16, 4312), (64, 18_269)]
)
def test_n_star_grows_with_the_tokens(t, star):
    assert ithbit.bound("rhi", "rnn", query_tokens=t).n_star == star


def test_an_index_in_binary_digits():
    found = ithbit.bound("rhi", "rnn", query_tokens=11, query_symbols=2, n=2048)
    assert found.n_star == 1_979
    assert found.to_json()["query"] == {"tokens": 11, "symbols": 2}
    assert "query of 11 tokens over 2 symbols" in str(found)
    assert ithbit.bound("mqar", "rnn", query_tokens=7, query_symbols=2).n_star == 101
    # Ten digits ask for at most 1,024 places, which is not excluded.
    assert ithbit.bound("rhi", "rnn", query_tokens=10, query_symbols=2).n_star == 1_760


def test_the_number_of_beginnings():
    listed = stages("rhi", architecture("rnn"), 2, Query(4, 3))
    assert [stage.words for stage in listed] == [3, 9, 27, 0, 0, 0]
    assert Stage("a", 1, 5, words=3).signs(2) == 10
    assert Stage("a", 1, 5, words=3).signs(100) == 15
    assert (Query(4, 3).most, Query(4).most) == (81, None)


def test_one_layer_of_attention_does_not_mind():
    for family in ("softmax-full", "softmax-causal"):
        assert ithbit.bound("mqar", family, query_tokens=5).n_star == 30
    state = [r for r in ithbit.bound("mqar", "rnn", query_tokens=5).routes if not r.real_arithmetic]
    assert [route.n_star for route in state] == [42]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: recall("rhi", 2, 0), "tokens of the query must be at least 1"),
        (lambda: recall("mqar", 2, 2, 1), "symbols of the query must be at least 2"),
        (lambda: recall("induction", 3, 2), "queries of several tokens are for rhi and mqar"),
        (lambda: recall("lhi", 2, 2), "queries of several tokens are for rhi and mqar"),
        (lambda: ithbit.bound("rhi", "rnn", query_tokens=1000), "layers times tokens of the query"),
        (
            lambda: ithbit.bound("rhi", "rnn", query_tokens=3, query_symbols=2, n=9),
            "3 tokens over 2 symbols are at most 8 queries, got n = 9",
        ),
    ],
)
def test_a_sentence_for_every_mistake(call, sentence):
    with pytest.raises(SpecError, match=sentence):
        call()


def test_where_no_list_is_known():
    with pytest.raises(NoBoundError, match="queries of several tokens"):
        ithbit.bound("rhi", "mamba2", model="trained", layers=2, query_tokens=2)
