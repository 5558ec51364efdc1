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
from dataclasses import dataclass, replace
from math import comb

from ithbit.display import pluralize
from ithbit.errors import SpecError
from ithbit.families import Task
from ithbit.theory.architecture import Architecture
from ithbit.theory.bounds.counting import Stage

# Squaring. With r = sqrt(v) > 0 the sign of A + B r follows from those of A, B and A^2 - B^2 v:
# three tests, or two if B is constant. For two nested normalisations, A = b + c r and
# W = q2 + q1 r + q0 v, the sign of A + c1 sqrt(W) follows from those of b, b^2 - c^2 v, X, Y and
# X^2 - Y^2 v, where A^2 - c1^2 W = X + Y r: five tests. Degrees double with each squaring.
_ONE_NORM, _TWO_NORMS = 3, 5

# Stages are counted layer by layer and query token by token: half a second for so many.
MOST_LAYERS = 500


class TooDeepError(SpecError):
    """The stack has a bound, but too many layers to compute it."""


@dataclass(frozen=True)
class Query:
    """The query after the prefix: so many tokens, each of so many symbols (0: any number)."""

    tokens: int = 1
    symbols: int = 0

    @property
    def most(self) -> int | None:
        """How many queries there are; None for any number."""
        return self.symbols**self.tokens if self.symbols else None

    @property
    def text(self) -> str:
        over = f" over {self.symbols:,} symbols" if self.symbols else ""
        return f"{pluralize(self.tokens, 'token')}{over}"

    def words(self, token: int) -> int:
        """How many beginnings with so many tokens; 0 for as many as there are queries."""
        return 0 if token == self.tokens else self.symbols**token if self.symbols else 0


ONE_TOKEN = Query()


def stages(
    task: Task, arch: Architecture, values: int = 2, query: Query = ONE_TOKEN
) -> tuple[Stage, ...] | None:
    """The stage list of a decision among V values, or None where the counting theorem has nothing
    to say.

    Full attention is covered for one layer, where it equals causal attention at the last token
    (Remark 7). Exact: the numbers are those of the decision as the docstrings below write it. It
    is one way to write it; fewer variables may do. For more than two values the last stage compares
    V logits, u_v^T y each. Without hidden units only these products matter, and their differences
    are of rank min(V - 1, d).

    *Queries of several tokens* (docs/recall.md). LHI, and one layer whose state is affine in theta,
    have the list of one token. Elsewhere every step has the stages of each layer but for the last
    output, and the docstrings say what step j adds; where they do not, no list is known.

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
        return (Stage("readout", min(values - 1, arch.width), 1, values=values),)
    if task == "lhi":
        found = _LHI.get((arch.model, arch.kind)) if one_layer else None
    else:
        found = _RHI.get((arch.model, arch.kind)) if arch.causal or one_layer else None
    if found is None:
        return None
    if task == "lhi" or (one_layer and arch.kind in ("ssm", "linear", "mamba2")):
        query = ONE_TOKEN
    if query.tokens > 1 and found not in _BY_STEPS:
        return None
    if (listed := arch.n_layers * query.tokens) > MOST_LAYERS:
        each = "layers" if query.tokens == 1 else "layers times tokens of the query"
        raise TooDeepError(
            f"bounds are computed for at most {MOST_LAYERS} {each}, got {listed:,}; take fewer"
        )
    if not arch.hidden and one_layer and (p := _affine_parameters(found, arch, values)):
        return (Stage("readout", p, 1, arch.heads, values=values),)
    *hidden, last = found(arch, query) if found in _BY_STEPS else found(arch)
    return (*hidden, replace(last, values=values))


def _affine_parameters(
    found: Callable[..., tuple[Stage, ...]], arch: Architecture, values: int
) -> int | None:
    """p of one formal layer without hidden units: of S, of beta, of A(sigma) and b(sigma) only the
    products with the readout vectors matter; z and rho stay."""
    d, H = arch.width, arch.heads
    in_head = min(values - 1, arch.head_width)
    return {
        _linear_rhi: d * (in_head + 1),
        _attention_lhi: H * (in_head + 1),
        _ssm_lhi: min(values - 1, d) * (d + 1),
    }.get(found)


def fixed_bits(task: Task, arch: Architecture) -> int:
    """How many bits (or values) the argument holds fixed; n* grows by this number.

    Through Mamba2's convolution of width v the last token sees the v - 1 bits before it, and in LHI
    the v - 1 bits after the index see the index.
    """
    if arch.kind != "mamba2":
        return 0
    return (arch.conv - 1) * (1 if task == "rhi" else 2)


def _relu(what: str, p: int, tests: int, degree: int = 1, words: int = 0) -> tuple[Stage, ...]:
    """The hidden layer of an MLP, absent if the MLP is affine."""
    return (Stage(what, p, tests, degree, words=words),) if tests else ()


def _recurrent_rhi(arch: Architecture, query: Query) -> tuple[Stage, ...]:
    """RNN, h' = N1(x, h), y = N2(x, h'): every preactivation is affine in the states kept so far.

    SSM, h' = A(x) h + B(x), y = phi(x, h'): affine in theta if A is constant, else of one degree
    more per layer. In the first layer x is the index's embedding, so A and B may be any maps there.

    Step j, A(x) affine: the states have the degrees D_(k,j) = D_(k-1,j) + D_(k,j-1), as A(x) h is a
    product, with D_(1,j) = D_(k,0) = 1. So D_(k,j) = C(j + k - 1, k - 1).
    """
    d, L, t = arch.width, arch.n_layers, query.tokens
    nets = ("N1", "N2") if arch.kind == "rnn" else ("phi",)
    affine = arch.kind == "rnn" or arch.transition == "constant"

    def degree(k: int, j: int) -> int:
        return 1 if affine else comb(j + k - 1, k - 1)

    hidden = [
        stage
        for k in range(1, L + 1)
        for j in range(1, t + 1)
        for net in (nets if k < L or j == t else nets[:-1])
        for stage in _relu(f"layer {k}, {net}", k * d, arch.hidden, degree(k, j), query.words(j))
    ]
    return (*hidden, Stage("readout", L * d, 1, degree(L, t)))


def _linear_rhi(arch: Architecture, query: Query) -> tuple[Stage, ...]:
    """Causal linear attention; preactivations times the denominators are polynomials of (S, z)."""
    d, H, w, L = arch.width, arch.heads, arch.hidden, arch.n_layers
    p1 = d * (arch.head_width + 1)
    if L == 1:
        return (*_relu("layer 1, hidden", p1, w, H), Stage("readout", p1, 1, H))
    return (_relu_features if arch.feature == "relu" else _elu_features)(arch, p1, query)


def _relu_features(arch: Architecture, p1: int, query: Query) -> tuple[Stage, ...]:
    """ReLU+1 is piecewise affine: x is a quotient of polynomials of one degree over theta.

    If it is delta_j at step j, the output has degree s + H (1 + delta_j + s), with s the sum of
    delta_1 ... delta_j (docs/recall.md). Layer 1 has x_j of degree 0, so H.
    """
    d, H, w, t = arch.width, arch.heads, arch.hidden, query.tokens
    found: list[Stage] = []
    degrees = [0] * t
    for layer in range(1, arch.n_layers + 1):
        before, total = degrees, 0
        degrees = []
        for j, delta in enumerate(before, 1):
            total += delta
            degrees.append(total + H * (1 + delta + total))
            words = query.words(j)
            if layer > 1:
                what = f"layer {layer}, feature signs"
                found.append(Stage(what, (layer - 1) * p1, 2 * d, delta, words=words))
            if layer < arch.n_layers or j == t:
                found += _relu(f"layer {layer}, hidden", layer * p1, w, degrees[-1], words)
    return (*found, Stage("readout", arch.n_layers * p1, 1, degrees[-1]))


def _elu_features(arch: Architecture, p1: int, query: Query) -> tuple[Stage, ...]:
    """ELU+1 from layer 2 on: the exponentials of keys and queries form the chain, 2d per layer.

    Implicit variables of a finished layer: its H inverse denominators and its d outputs. A single
    head's denominator multiplies the tests of its own layer; with more heads they are implicit too.
    Implicit denominators from layer 2 on are also tests. Step j has all of them j times, but for
    the denominators of the layer that is not finished.
    """
    d, H, w, L, t = arch.width, arch.heads, arch.hidden, arch.n_layers, query.tokens
    own = H if H > 1 else 0
    found: list[Stage] = []
    for j in range(1, t + 1):
        found += _relu("layer 1, hidden", p1, w, H, query.words(j))
    for layer in range(2, L + 1):
        done = layer - 1
        for j in range(1, t + 1):
            words, tests = query.words(j), (done - 1) * H * j
            before = {"implicit": done * (d + H) * j, "chain": 2 * d * (done - 1) * j}
            after = {"implicit": done * (d + H) * j + own, "chain": 2 * d * done * j}
            what = f"layer {layer}, feature signs"
            found.append(Stage(what, done * p1, 2 * d + tests, 4, **before, words=words))
            if w and (layer < L or j == t):
                what = f"layer {layer}, hidden"
                found.append(Stage(what, layer * p1, w + tests + own, 4, **after, words=words))
    return (*found, Stage("readout", L * p1, 1 + tests + own, 4, **after))


def _attention_lhi(arch: Architecture) -> tuple[Stage, ...]:
    """a = (alpha(i) + beta(sigma)) / (gamma(i) + rho(sigma)) per head, softmax or any phi.

    theta = (beta, rho) in R^(d + H).
    """
    d, H = arch.width, arch.heads
    return (Stage("hidden", d + H, arch.hidden, H), Stage("readout", d + H, 1, H))


def _ssm_lhi(arch: Architecture) -> tuple[Stage, ...]:
    """h = A(sigma) alpha(i) + b(sigma), for any maps A and B; a constant A leaves b(sigma)."""
    d, w = arch.width, arch.hidden
    p = d if arch.transition == "constant" else d * d + d
    return (Stage("hidden", p, w), Stage("readout", p, 1))


def _gru_rhi(arch: Architecture, query: Query) -> tuple[Stage, ...]:
    """nn.GRU with a linear head: one test, implicit variables a_n, n and h' for each unit.

    (a_n - W x - b)(1 + e^-r) = U h + c, n (e^(2 a_n) + 1) = e^(2 a_n) - 1 and
    h'(1 + e^-z) = n e^-z + h have degree 2. In layer 1 the exponentials of r and z are common to
    all indices up to factors, at the first step; every further one has its own.
    """
    d, L, t = arch.width, arch.n_layers, query.tokens
    return (
        Stage(
            "readout",
            parameters=L * d,
            tests=1,
            degree=2,
            implicit=3 * d * L * t,
            chain=3 * d * L * t - 2 * d,
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


_RHI: dict[tuple[str, str], Callable[..., tuple[Stage, ...]]] = {
    ("formal", "rnn"): _recurrent_rhi,
    ("formal", "ssm"): _recurrent_rhi,
    ("formal", "linear"): _linear_rhi,
    ("trained", "gru"): _gru_rhi,
    ("trained", "mamba2"): _mamba2_rhi,
    ("trained", "linear"): _pre_ln_rhi,
}
_LHI: dict[tuple[str, str], Callable[..., tuple[Stage, ...]]] = {
    ("formal", "softmax"): _attention_lhi,
    ("formal", "linear"): _attention_lhi,
    ("formal", "ssm"): _ssm_lhi,
    ("trained", "softmax"): _block_lhi,
    ("trained", "linear"): _block_lhi,
    ("trained", "mamba2"): _mamba2_lhi,
}
_BY_STEPS = (_recurrent_rhi, _linear_rhi, _gru_rhi)  # with stages for every token of the query
