"""Stage lists: how each family decides, as input to the counting theorem.

For each family the decision at the last token is cut into stages whose tests are affine, polynomial
or Pfaffian in the fingerprint theta (`ithbit.theory.bounds.counting` has the theorem and its
letters p, kappa, l, m, q, q0, M). True fingerprints have positive denominators, so a test may be
multiplied by one; a denominator that becomes an implicit variable and may vanish at other theta
adds one more test. Sums of positive features are written as squares, so first-layer denominators
are positive everywhere; degree 4 includes that.

Every number of every list is counted by a program, too: `tests/support/decisions` runs the
decisions on numbers that write down their equations.

    d width   H heads   d_h = d / H   w hidden   L layers
    p1 = d (d_h + 1)    the numbers S = sum v phi(k)^T and z = sum phi(k) of one linear layer
"""

from collections.abc import Callable
from dataclasses import replace

from ithbit.errors import SpecError
from ithbit.families import Task
from ithbit.theory.architecture import Architecture
from ithbit.theory.bounds.counting import Stage

# Squaring. With r = sqrt(v) > 0 the sign of A + B r follows from those of A, B and A^2 - B^2 v:
# three tests, or two if B is constant. For two nested normalisations, A = b + c r and
# W = q2 + q1 r + q0 v, the sign of A + c1 sqrt(W) follows from those of b, b^2 - c^2 v, X, Y and
# X^2 - Y^2 v, where A^2 - c1^2 W = X + Y r: five tests. Degrees double with each squaring.
_ONE_NORM, _TWO_NORMS = 3, 5

MOST_LAYERS = 500  # stages are counted layer by layer: half a second at this depth


class TooDeepError(SpecError):
    """The stack has a bound, but too many layers to compute it."""


def stages(task: Task, arch: Architecture, values: int = 2) -> tuple[Stage, ...] | None:
    """The stage list of a decision among V values, or None where the counting theorem has nothing
    to say.

    Full attention is covered for one layer, where it equals causal attention at the last token
    (Remark 7). Exact: the numbers are those of the decision as the docstrings below write it. It
    is one way to write it; fewer variables may do. For more than two values the last stage compares
    V logits, u_v^T y each. Without hidden units only these products matter, and their differences
    are of rank min(V - 1, d).

    >>> from ithbit.theory.architecture import architecture
    >>> for stage in stages("rhi", architecture("rnn", width=2, hidden=8)):
    ...     print(stage.kind, stage.parameters, stage.tests)
    A 2 8
    A 2 8
    A 2 1
    """
    one_layer = arch.n_layers == 1
    additive = arch.kind == "rnn" or (arch.kind == "ssm" and arch.transition == "constant")
    if not arch.hidden and arch.model == "formal" and additive:
        # Affine throughout: the logits are f(sigma) + g(i), and theta = f(sigma).
        return (Stage("readout", _rank(arch.width, values), 1, values=values),)
    if task == "lhi":
        found = _LHI.get((arch.model, arch.kind)) if one_layer else None
    else:
        found = _RHI.get((arch.model, arch.kind)) if arch.causal or one_layer else None
    if found and arch.n_layers > MOST_LAYERS:
        raise TooDeepError(
            f"bounds are computed for at most {MOST_LAYERS} layers, got {arch.n_layers:,}; "
            "take fewer"
        )
    if found is None:
        return None
    if not arch.hidden and one_layer and (affine := _AFFINE.get(found)):
        return (affine(arch, values),)
    *hidden, last = found(arch)
    return (*hidden, replace(last, values=values))


def _rank(width: int, values: int) -> int:
    """The rank of the differences of V readout vectors of this width."""
    return min(values - 1, width)


def fixed_bits(task: Task, arch: Architecture) -> int:
    """How many bits (or values) the argument holds fixed; n* grows by this number.

    Through Mamba2's convolution of width v the last token sees the v - 1 bits before it, and in LHI
    the v - 1 bits after the index see the index.
    """
    if arch.kind != "mamba2":
        return 0
    return (arch.conv - 1) * (1 if task == "rhi" else 2)


def _relu(what: str, p: int, tests: int, degree: int = 1) -> tuple[Stage, ...]:
    """The hidden layer of an MLP, absent if the MLP is affine."""
    return (Stage(what, p, tests, degree),) if tests else ()


def _recurrent_rhi(arch: Architecture) -> tuple[Stage, ...]:
    """RNN, h' = N1(x, h), y = N2(x, h'): every preactivation is affine in the states kept so far.

    SSM, h' = A(x) h + B(x), y = phi(x, h'): affine in theta if A is constant, else of one degree
    more per layer. In the first layer x is the index's embedding, so A and B may be any maps there.
    """
    d, L = arch.width, arch.n_layers
    nets = ("N1", "N2") if arch.kind == "rnn" else ("phi",)
    affine = arch.kind == "rnn" or arch.transition == "constant"
    hidden = [
        stage
        for k in range(1, L + 1)
        for net in nets
        for stage in _relu(f"layer {k}, {net}", k * d, arch.hidden, 1 if affine else k)
    ]
    return (*hidden, Stage("readout", L * d, 1, 1 if affine else L))


def _linear_rhi(arch: Architecture) -> tuple[Stage, ...]:
    """Causal linear attention; preactivations times the denominators are polynomials of (S, z)."""
    d, H, w, L = arch.width, arch.heads, arch.hidden, arch.n_layers
    p1 = d * (arch.head_width + 1)
    affine = arch.feature == "relu" or L == 1
    later = _relu_features(arch, p1) if affine else _elu_features(arch, p1)
    return (*_relu("layer 1, hidden", p1, w, H), *later)


def _linear_affine(arch: Architecture, values: int) -> Stage:
    """One layer, affine: of a head's S only its products with the readout vectors matter, and z."""
    p = arch.width * (_rank(arch.head_width, values) + 1)
    return Stage("readout", p, 1, arch.heads, values=values)


def _relu_features(arch: Architecture, p1: int) -> tuple[Stage, ...]:
    """ReLU+1 is piecewise affine: x is a quotient of polynomials of degree delta over theta.

    x = X / D of degrees delta; the denominators of the H heads have degree 2 delta + 1 over D^2,
    so delta' = delta + H (2 delta + 1), from delta = H after layer 1.
    """
    d, H = arch.width, arch.heads
    found: list[Stage] = []
    delta = H
    for layer in range(2, arch.n_layers + 1):
        found.append(Stage(f"layer {layer}, feature signs", (layer - 1) * p1, 2 * d, delta))
        delta += H * (2 * delta + 1)
        found += _relu(f"layer {layer}, hidden", layer * p1, arch.hidden, delta)
    return (*found, Stage("readout", arch.n_layers * p1, 1, delta))


def _elu_features(arch: Architecture, p1: int) -> tuple[Stage, ...]:
    """ELU+1 from layer 2 on: the exponentials of keys and queries form the chain, 2d per layer.

    Implicit variables of a finished layer: its H inverse denominators and its d outputs. A single
    head's denominator multiplies the tests of its own layer; with more heads they are implicit too.
    Implicit denominators from layer 2 on are also tests.
    """
    d, H, w, L = arch.width, arch.heads, arch.hidden, arch.n_layers
    own = H if H > 1 else 0
    found: list[Stage] = []
    for layer in range(2, L + 1):
        done = layer - 1
        before = {"implicit": done * (d + H), "chain": 2 * d * (done - 1)}
        tests = 2 * d + (done - 1) * H
        found.append(Stage(f"layer {layer}, feature signs", done * p1, tests, 4, **before))
        after = {"implicit": done * (d + H) + own, "chain": 2 * d * done}
        dens = (done - 1) * H + own
        if w:
            found.append(Stage(f"layer {layer}, hidden", layer * p1, w + dens, 4, **after))
        if layer == L:
            found.append(Stage("readout", L * p1, 1 + dens, 4, **after))
    return tuple(found)


def _attention_lhi(arch: Architecture) -> tuple[Stage, ...]:
    """a = (alpha(i) + beta(sigma)) / (gamma(i) + rho(sigma)) per head, softmax or any phi.

    theta = (beta, rho) in R^(d + H).
    """
    d, H = arch.width, arch.heads
    return (Stage("hidden", d + H, arch.hidden, H), Stage("readout", d + H, 1, H))


def _attention_affine(arch: Architecture, values: int) -> Stage:
    """Of a head's beta only its products with the readout vectors matter, and rho."""
    p = arch.heads * (_rank(arch.head_width, values) + 1)
    return Stage("readout", p, 1, arch.heads, values=values)


def _ssm_lhi(arch: Architecture) -> tuple[Stage, ...]:
    """h = A(sigma) alpha(i) + b(sigma), for any maps A and B; a constant A leaves b(sigma)."""
    d, w = arch.width, arch.hidden
    p = d if arch.transition == "constant" else d * d + d
    return (Stage("hidden", p, w), Stage("readout", p, 1))


def _ssm_affine(arch: Architecture, values: int) -> Stage:
    """Of A(sigma) and b(sigma) only the products with the readout vectors matter."""
    return Stage("readout", _rank(arch.width, values) * (arch.width + 1), 1, values=values)


def _gru_rhi(arch: Architecture) -> tuple[Stage, ...]:
    """nn.GRU with a linear head: one test, implicit variables a_n, n and h' for each unit.

    (a_n - W x - b)(1 + e^-r) = U h + c, n (e^(2 a_n) + 1) = e^(2 a_n) - 1 and
    h'(1 + e^-z) = n e^-z + h have degree 2. In layer 1 the exponentials of r and z are common to
    all indices up to factors.
    """
    d, L = arch.width, arch.n_layers
    return (
        Stage(
            "readout",
            parameters=L * d,
            tests=1,
            degree=2,
            implicit=3 * d * L,
            chain=d + 3 * d * (L - 1),
            shared_chain=2 * d,
        ),
    )


def _pre_ln_rhi(arch: Architecture) -> tuple[Stage, ...]:
    """Pre-LN linear attention, feed-forward; squaring or rho removes the root of LayerNorm.

    Implicit variables, layer 1 (its first LayerNorm sees the index alone): H inverse denominators,
    the sum s (d), rho = 1 / sqrt(var + eps), the output (d). A later layer: rho, q, k, v (3d), H
    denominators, s, rho, the output, which the ReLU stages count although no test of theirs needs
    it. GELU adds w preactivations and their pairs (e^(-u^2/2), Phi(u)) of chain degree 2, and
    removes the ReLU stages.
    """
    d, H, w, L = arch.width, arch.heads, arch.hidden, arch.n_layers
    p1 = d * (arch.head_width + 1)
    gelu = arch.activation == "gelu"
    if L == 1 and not gelu:
        return (
            Stage("layer 1, ReLU", p1, 2 * w, 2 * H),
            Stage("readout", p1, _ONE_NORM, 4 * H),
        )
    extra, M = (w, 2) if gelu else (0, 1)
    first, later = H + 2 * d + 1, 5 * d + H + 2
    found = [] if gelu else [Stage("layer 1, ReLU", p1, 2 * w, 2 * H)]

    def stage(what: str, layers: int, tests: int, m: int, roots: int, done: int) -> Stage:
        """`layers` fingerprints, exponentials of `roots` layers, `done` feed-forward parts."""
        chain = 2 * d * roots + 2 * extra * done
        return Stage(what, layers * p1, tests, 4, m + extra * done, chain, chain_degree=M)

    for layer in range(2, L + 1):
        m = first + (layer - 2) * later + 3 * d + 1
        tests = 2 * d + (layer - 2) * H
        found.append(
            stage(f"layer {layer}, feature signs", layer - 1, tests, m, layer - 2, layer - 1)
        )
        if not gelu:
            m = first + (layer - 1) * later
            tests = w + (layer - 1) * H
            found.append(stage(f"layer {layer}, ReLU", layer, tests, m, layer - 1, layer))
    m = first + (L - 1) * later
    return (*found, stage("readout", L, 1 + (L - 1) * H, m, L - 1, L))


def _block_lhi(arch: Architecture) -> tuple[Stage, ...]:
    """One block on LHI: theta = (beta, rho) per head; one LayerNorm follows the attention in a
    pre-LN block, two in a BERT block."""
    d, H, w = arch.width, arch.heads, arch.hidden
    norms, tests = (1, _ONE_NORM) if arch.kind == "linear" else (2, _TWO_NORMS)
    if arch.activation == "relu":
        return (Stage("ReLU", d + H, 2 * w, 2 * H), Stage("readout", d + H, tests, 4 * H))
    return (Stage("readout", d + H, 1, 4, H + norms * (d + 1) + w, 2 * w, chain_degree=2),)


def _mamba2_rhi(arch: Architecture) -> tuple[Stage, ...]:
    """Mamba2 with the last bits fixed: one layer has no exponential left, two RMSNorms follow.

    From layer 2 on: exponentials of the convolution's SiLU (c), the gate (d) and per head
    softplus, its inverse and the decay; the convolution keeps c partial sums. Implicit variables,
    layer 1: the gated y (d), rho, the output (d). A later layer: rho, argument and value of the
    gate (2d), of the convolution's SiLU (2c) and of softplus (2H), y, the gated y, rho, the
    output. At the end rho of the last RMSNorm.
    """
    d, H, N, c, L = arch.width, arch.heads, arch.state, arch.conv_channels, arch.n_layers
    if L == 1:
        return (Stage("readout", d * N, _TWO_NORMS, 4),)
    return (
        Stage(
            "readout",
            parameters=L * d * N + (L - 1) * c,
            tests=1,
            degree=4,
            implicit=(2 * d + 1) + (L - 1) * (5 * d + 2 * c + 2 * H + 2) + 1,
            chain=(c + d + 3 * H) * (L - 1),
        ),
    )


def _mamba2_lhi(arch: Architecture) -> tuple[Stage, ...]:
    """theta = the product of the decays per head and C.b(sigma), d numbers; two RMSNorms follow."""
    return (Stage("readout", arch.width + arch.heads, _TWO_NORMS, 4),)


_RHI = {
    ("formal", "rnn"): _recurrent_rhi,
    ("formal", "ssm"): _recurrent_rhi,
    ("formal", "linear"): _linear_rhi,
    ("trained", "gru"): _gru_rhi,
    ("trained", "mamba2"): _mamba2_rhi,
    ("trained", "linear"): _pre_ln_rhi,
}
_LHI = {
    ("formal", "softmax"): _attention_lhi,
    ("formal", "linear"): _attention_lhi,
    ("formal", "ssm"): _ssm_lhi,
    ("trained", "softmax"): _block_lhi,
    ("trained", "linear"): _block_lhi,
    ("trained", "mamba2"): _mamba2_lhi,
}
# One layer without hidden units (trained blocks always have some): one stage, fewer numbers.
_AFFINE: dict[object, Callable[[Architecture, int], Stage]] = {
    _linear_rhi: _linear_affine,
    _attention_lhi: _attention_affine,
    _ssm_lhi: _ssm_affine,
}
