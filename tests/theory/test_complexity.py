"""Causal complexity: counted operations equal the formulas, completions equal the layers."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.support.completions import count, formal, trained
from tests.support.completions.scalar import Counted, Tally, exp, log, relu, sqrt
from torch import nn

from ithbit.errors import SpecError
from ithbit.theory.architecture import architecture
from ithbit.theory.complexity import causal_complexity, mlp_operations
from ithbit.theory.layers import LinearAttention, ReluNet, Rnn, SoftmaxAttention, Ssm, matrix

K = 5  # tokens before the one that is computed, plus one


def draw(seed, *shape):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def net(seed, *widths):
    """The same MLP as the layer module and as the program have it."""
    weights = [draw(seed + j, b, a) for j, (a, b) in enumerate(pairwise(widths))]
    biases = [draw(seed + 50 + j, b) for j, b in enumerate(widths[1:])]
    layer = ReluNet(tuple(matrix(w) for w in weights), tuple(matrix(b, 1) for b in biases))
    return layer, formal.Mlp(tuple(w.tolist() for w in weights), tuple(b.tolist() for b in biases))


def constant_net(values):
    """The MLP R^d -> R^m whose weights are zero."""
    values = np.asarray(values)
    return lambda d: ReluNet((matrix(np.zeros((len(values), d))),), (matrix(values, 1),))


def formal_pair(name, d, w):
    """(layer of `ithbit.theory.layers`, program, architecture)."""
    inner = (w,) if w else ()
    matrices = [draw(j, d, d) for j in range(3)]
    plain = [m.tolist() for m in matrices]
    if name == "rnn":
        (n1, p1), (n2, p2) = net(1, 2 * d, *inner, d), net(2, 2 * d, *inner, d)
        return Rnn(n1, n2), formal.RnnLayer(d, p1, p2), architecture("rnn", width=d, hidden=w)
    phi, phi_program = net(3, 2 * d, *inner, d)
    h0 = draw(9, d)
    if name == "ssm constant":
        A, B = matrices[0], matrices[1]
        layer = Ssm(
            constant_net(A.ravel())(d),
            ReluNet((matrix(B),), (matrix(np.zeros(d), 1),)),
            phi,
            matrix(h0, 1),
        )
        program = formal.SsmLayer(plain[0], plain[1], phi_program, h0.tolist())
        return layer, program, architecture("ssm", width=d, hidden=w, transition="constant")
    if name == "ssm affine":
        A, A_bias, B, B_bias = draw(4, d * d, d), draw(5, d * d), matrices[0], draw(6, d)
        layer = Ssm(
            ReluNet((matrix(A),), (matrix(A_bias, 1),)),
            ReluNet((matrix(B),), (matrix(B_bias, 1),)),
            phi,
            matrix(h0, 1),
        )
        program = formal.SelectiveSsmLayer(
            A.reshape(d, d, d).tolist(),
            A_bias.reshape(d, d).tolist(),
            plain[0],
            B_bias.tolist(),
            phi_program,
            h0.tolist(),
        )
        return layer, program, architecture("ssm", width=d, hidden=w)
    mlp, mlp_program = net(7, d, *inner, d)
    if name == "softmax":
        layer = SoftmaxAttention(True, *map(matrix, matrices), mlp)
        program = formal.SoftmaxLayer(*plain, mlp_program)
        return layer, program, architecture("softmax-causal", width=d, hidden=w)
    feature = name.split()[1]
    layer = LinearAttention(True, *map(matrix, matrices), mlp, f"{feature}+1")
    program = formal.LinearLayer(*plain, mlp_program, feature)
    return layer, program, architecture("linear-causal", width=d, hidden=w, feature=feature)


def agrees(found, tally, dimension):
    """The tally is the formula, kind by kind."""
    assert dimension == found.dimension
    assert tally.total == found.operations
    assert tally.exponentials <= found.exponentials
    assert tally.square_roots == found.square_roots
    assert tally.logarithms == found.logarithms
    assert tally.error_functions == found.error_functions


@pytest.mark.parametrize("w", [0, 1, 6])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize(
    "name", ["rnn", "ssm constant", "ssm affine", "linear elu", "linear relu", "softmax"]
)
def test_formal_layers(name, d, w):
    layer, program, arch = formal_pair(name, d, w)
    x = draw(11, 1, K, d)
    fingerprint = program.fingerprint(x[0, :-1].tolist())
    output, tally = count(program, fingerprint, x[0, -1].tolist())
    np.testing.assert_allclose(output, layer(x)[0, -1], rtol=1e-9, atol=1e-11)
    assert program.completion(fingerprint, x[0, -1].tolist()) == output
    agrees(causal_complexity(arch, position=K), tally, len(fingerprint))


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("name", ["linear-causal", "softmax-causal"])
def test_formal_layers_with_heads(name, heads):
    d, w = 4, 3
    _, mlp = net(1, d, w, d)
    plain = [draw(j, d, d).tolist() for j in range(3)]
    if name == "linear-causal":
        program = formal.LinearLayer(*plain, mlp, "elu", heads)
    else:
        program = formal.SoftmaxLayer(*plain, mlp, heads)
    x = draw(12, K, d).tolist()
    fingerprint = program.fingerprint(x[:-1])
    _, tally = count(program, fingerprint, x[-1])
    arch = architecture(name, width=d, hidden=w, heads=heads)
    agrees(causal_complexity(arch, position=K), tally, len(fingerprint))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_gru_equals_torch(d):
    torch.manual_seed(d)
    gru = nn.GRU(d, d, batch_first=True, dtype=torch.float64)
    program = trained.GruLayer(
        *(weight.detach().tolist() for weight in (gru.weight_ih_l0, gru.weight_hh_l0)),
        *(bias.detach().tolist() for bias in (gru.bias_ih_l0, gru.bias_hh_l0)),
    )
    x = torch.randn(1, K, d, dtype=torch.float64)
    fingerprint = program.fingerprint(x[0, :-1].tolist())
    output, tally = count(program, fingerprint, x[0, -1].tolist())
    np.testing.assert_allclose(output, gru(x)[0][0, -1].detach(), rtol=1e-12, atol=1e-13)
    found = causal_complexity(architecture("gru", "trained", width=d))
    agrees(found, tally, len(fingerprint))
    assert tally.exponentials == found.exponentials
    assert found.covered


def norm(d, seed):
    weight, bias = draw(seed, d) + 1, draw(seed + 1, d)

    def layer_norm(x):
        return F.layer_norm(x, (d,), torch.tensor(weight), torch.tensor(bias), 1e-5)

    return layer_norm, trained.Norm(weight.tolist(), bias.tolist(), 1e-5)


def feed_forward(d, w, activation, seed):
    parts = [draw(seed, w, d), draw(seed + 1, w), draw(seed + 2, d, w), draw(seed + 3, d)]
    w1, b1, w2, b2 = map(torch.tensor, parts)
    act = F.gelu if activation == "gelu" else F.relu

    def apply(x):
        return F.linear(act(F.linear(x, w1, b1)), w2, b2)

    return apply, trained.FeedForward(*(part.tolist() for part in parts), activation)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize(("d", "heads", "w"), [(2, 1, 3), (4, 2, 5), (6, 3, 1)])
def test_pre_ln_linear_block(d, heads, w, activation):
    (norm1, program1), (norm2, program2) = norm(d, 1), norm(d, 3)
    ff, ff_program = feed_forward(d, w, activation, 20)
    matrices = [draw(j, d, d) for j in range(4)]
    key, query, value, out = map(torch.tensor, matrices)
    eps = 1e-6
    program = trained.PreLnLinearBlock(
        program1, *(m.tolist() for m in matrices), program2, ff_program, heads, eps
    )
    x = torch.tensor(draw(13, K, d))
    u = norm1(x)
    k, q, v = (
        F.linear(u, m).reshape(K, heads, d // heads).transpose(0, 1) for m in (key, query, value)
    )
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).transpose(1, 2)).tril()
    a = weights @ v / (weights.sum(-1, keepdim=True) + eps)
    s = x + F.linear(a.transpose(0, 1).reshape(K, d), out)
    expected = s + ff(norm2(s))
    fingerprint = program.fingerprint(x[:-1].tolist())
    output, tally = count(program, fingerprint, x[-1].tolist())
    np.testing.assert_allclose(output, expected[-1], rtol=1e-9, atol=1e-11)
    arch = architecture(
        "linear-causal", "trained", width=d, heads=heads, hidden=w, activation=activation
    )
    agrees(causal_complexity(arch), tally, len(fingerprint))


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize(("d", "heads", "w"), [(2, 1, 3), (4, 2, 5)])
def test_bert_block(d, heads, w, activation):
    (norm1, program1), (norm2, program2) = norm(d, 1), norm(d, 3)
    ff, ff_program = feed_forward(d, w, activation, 20)
    parts = [draw(j, d, d) if j % 2 == 0 else draw(j, d) for j in range(8)]
    program = trained.BertBlock(
        *(part.tolist() for part in parts), program1, ff_program, program2, heads
    )
    tensors = [torch.tensor(part) for part in parts]
    x = torch.tensor(draw(14, K, d))
    k, q, v = (
        F.linear(x, tensors[2 * j], tensors[2 * j + 1])
        .reshape(K, heads, d // heads)
        .transpose(0, 1)
        for j in range(3)
    )
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    s = norm1(x + F.linear(a.transpose(0, 1).reshape(K, d), tensors[6], tensors[7]))
    expected = norm2(s + ff(s))
    fingerprint = program.fingerprint(x[:-1].tolist())
    output, tally = count(program, fingerprint, x[-1].tolist())
    np.testing.assert_allclose(output, expected[-1], rtol=1e-9, atol=1e-11)
    arch = architecture(
        "softmax-causal", "trained", width=d, heads=heads, hidden=w, activation=activation
    )
    agrees(causal_complexity(arch, position=K), tally, len(fingerprint))


@pytest.mark.parametrize(("d", "heads", "N", "v"), [(2, 1, 3, 3), (4, 2, 2, 3), (4, 4, 1, 2)])
def test_mamba2_block(d, heads, N, v):
    """Against the unrolled sum over all earlier tokens: no state, no recurrence."""
    c = d + 2 * N
    parts = {
        "in_proj": draw(1, 2 * d + 2 * N + heads, d),
        "conv": draw(2, c, v),
        "conv_bias": draw(3, c),
        "dt_bias": draw(4, heads),
        "A_log": draw(5, heads),
        "D": draw(6, heads),
        "out_proj": draw(7, d, d),
    }
    w1, w2, eps = draw(8, d) + 1, draw(9, d) + 1, 1e-5
    program = trained.Mamba2Block(
        norm=trained.RmsNorm(w1.tolist(), eps),
        gated_norm=trained.RmsNorm(w2.tolist(), eps),
        **{name: part.tolist() for name, part in parts.items()},
    )
    t = {name: torch.tensor(part) for name, part in parts.items()}
    x = torch.tensor(draw(15, K, d))
    projected = F.linear(F.rms_norm(x, (d,), torch.tensor(w1), eps), t["in_proj"])
    z, xbc, dt = projected.split([d, c, heads], dim=-1)
    padded = F.pad(xbc.T, (v - 1, 0))
    mixed = F.silu(F.conv1d(padded[None], t["conv"][:, None], t["conv_bias"], groups=c)[0].T)
    inner, B, C = mixed.split([d, N, N], dim=-1)
    steps = F.softplus(dt + t["dt_bias"])
    decay = steps * -torch.exp(t["A_log"])
    y = torch.zeros(d, dtype=torch.float64)
    for j in range(d):
        h = j // (d // heads)
        for token in range(K):
            kept = torch.exp(decay[token + 1 :, h].sum())
            y[j] += (C[-1] @ B[token]) * kept * steps[token, h] * inner[token, j]
        y[j] += t["D"][h] * inner[-1, j]
    gated = F.rms_norm(y * F.silu(z[-1]), (d,), torch.tensor(w2), eps)
    expected = x[-1] + t["out_proj"] @ gated
    fingerprint = program.fingerprint(x[:-1].tolist())
    output, tally = count(program, fingerprint, x[-1].tolist())
    np.testing.assert_allclose(output, expected, rtol=1e-9, atol=1e-11)
    arch = architecture("mamba2", "trained", width=d, heads=heads, state=N, conv=v)
    found = causal_complexity(arch)
    agrees(found, tally, len(fingerprint))
    assert tally.exponentials == found.exponentials


@pytest.mark.parametrize(
    ("family", "sizes", "dimension", "operations"),
    [
        ("rnn", {}, 16, 12_432),
        ("ssm", {"transition": "constant"}, 16, 7_232),
        ("linear-causal", {}, 272, 6_351),
        ("gru", {"model": "trained"}, 16, 3_328),
        ("linear-causal", {"model": "trained", "activation": "relu"}, 144, 6_838),
        ("mamba2", {"model": "trained"}, 352, 4_592),
    ],
)
def test_width_sixteen(family, sizes, dimension, operations):
    found = causal_complexity(architecture(family, **sizes))
    assert (found.dimension, found.operations) == (dimension, operations)
    assert found.total == dimension + operations


def test_softmax_fingerprint_grows_with_the_position():
    arch = architecture("softmax-causal", width=3)
    assert [causal_complexity(arch, k).dimension for k in (1, 2, 10)] == [0, 6, 54]
    assert causal_complexity(arch, 2).position == 2
    with pytest.raises(SpecError, match="k must be at least 1, got None"):
        causal_complexity(arch)


def test_full_attention_has_no_causal_complexity():
    with pytest.raises(SpecError, match=r"linear-full is not causal.*take linear-causal"):
        causal_complexity(architecture("linear-full"))


def test_the_counting_scalar_counts_each_operation_once():
    tally = Tally()
    x, y = Counted(2.0, tally), Counted(0.5, tally)
    assert (x + y).value == 2.5
    assert (1 - x * y / 4).value == 0.75
    assert (-y).value == -0.5
    assert tally.arithmetic == 5
    assert sqrt(log(exp(x * 2))).value == pytest.approx(2)
    assert (tally.exponentials, tally.logarithms, tally.square_roots) == (1, 1, 1)
    assert (relu(y - x) * 3).value == 0
    assert (tally.comparisons, tally.arithmetic, tally.total) == (1, 8, 12)
    assert mlp_operations(3, 2) == 12
