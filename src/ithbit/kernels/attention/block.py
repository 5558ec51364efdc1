"""The parts of a softmax or linear attention block that act on each token separately, and their
backward passes: projections, LayerNorms, the out projection and the feed-forward part.

Functions for kernels, on rows of tokens; `w` is where a block's parameters start, `p` where this
program's share of their gradients starts.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

from ithbit.kernels.tile import (
    along_rows,
    dot,
    gelu,
    load_matrix,
    load_transposed,
    load_vector,
    normalise,
    normalise_back,
    put,
    put_matrix,
    put_vector,
)

_SLICE = tl.constexpr(32)  # hidden units of the feed-forward part at a time, forward


@dataclass(frozen=True)
class AttentionShape:
    """What the kernels of a model are compiled for, besides the length of its sequences."""

    D: int
    FF: int  # hidden units of the feed-forward part
    H: int  # heads
    SOFTMAX: bool  # else linear
    SCALE: float  # of softmax attention's scores
    EPS: float  # of the LayerNorms
    ENCODING: str  # of positions
    AT: tuple[tuple[str, int], ...]  # where each parameter starts within its block


@triton.constexpr_function
def param_at(name, K):
    """Where a parameter starts within its block."""
    return dict(K.AT)[name]


@triton.jit
def _swap(D: tl.constexpr):
    """The matrix that maps neighbouring pairs (a, b) to (-b, a): D D."""
    r, c = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    return tl.where(
        (r % 2 == 0) & (c == r + 1), 1.0, tl.where((r % 2 == 1) & (c == r - 1), -1.0, 0.0)
    )


@triton.jit
def _turn(x, waves, position, sign, TOKENS, D: tl.constexpr):
    """RoFormer's rotation of rows at their positions; by the opposite angle with sign = -1."""
    at = position[:, None] * D + tl.arange(0, D)[None, :]
    cosine, sine = tl.load(waves + at), tl.load(waves + TOKENS * D + at)
    return x * cosine + sign * dot(x, _swap(D)) * sine


@triton.jit
def project_one(rows, w, waves, position, which: tl.constexpr, TOKENS, K: tl.constexpr):
    """Queries (0), keys (1) or values (2) of the rows that `norm_input` gives."""
    weight = w + param_at("qkv.weight", K) + which * K.D * K.D
    out = dot(rows, load_transposed(weight, K.D, K.D))
    if K.SOFTMAX:
        out += load_vector(w + param_at("qkv.bias", K) + which * K.D, K.D)
    elif which < 2:
        out = tl.exp(tl.minimum(out, 0.0)) + tl.maximum(out, 0.0)
    if K.ENCODING == "rotary" and which < 2:
        out = _turn(out, waves, position, 1.0, TOKENS, K.D)
    return out


@triton.jit
def _project_one_back(grad, out, w, waves, position, which: tl.constexpr, TOKENS, K: tl.constexpr):
    """Gradients before the feature map and the rotation, and of the rows that were projected."""
    if K.ENCODING == "rotary" and which < 2:
        grad = _turn(grad, waves, position, -1.0, TOKENS, K.D)
    if not K.SOFTMAX and which < 2:
        grad *= tl.minimum(out, 1.0)  # the slope of ELU + 1, from its value
    weight = w + param_at("qkv.weight", K) + which * K.D * K.D
    return grad, dot(grad, load_matrix(weight, K.D, K.D))


@triton.jit
def _gained(normal, w, WHICH: tl.constexpr, K: tl.constexpr):
    """The rows of a LayerNorm after its gain and offset, from the normalised ones."""
    out = normal * load_vector(w + param_at(WHICH + ".weight", K), K.D)
    return out + load_vector(w + param_at(WHICH + ".bias", K), K.D)


@triton.jit
def _gained_back(grad, normal, inverse, w, p, again, WHICH: tl.constexpr, K: tl.constexpr):
    """Gradient of a LayerNorm's input; the shares of its gain and offset go to `p`."""
    put_vector(p + param_at(WHICH + ".weight", K), tl.sum(grad * normal, 0), again, K.D)
    put_vector(p + param_at(WHICH + ".bias", K), tl.sum(grad, 0), again, K.D)
    gain = load_vector(w + param_at(WHICH + ".weight", K), K.D)
    return normalise_back(grad * gain, normal, inverse, K.D)


@triton.jit
def norm_input(x, w, K: tl.constexpr):
    """What a block projects: its input, for linear attention after a LayerNorm."""
    if not K.SOFTMAX:
        x, _ = normalise(x, K.D, K.EPS)
        x = _gained(x, w, "norm1", K)
    return x


@triton.jit
def _norm_input_back(grad, x, w, K: tl.constexpr):
    """Gradient of `norm_input`'s input, and that of its gain for each row."""
    gain = grad
    if not K.SOFTMAX:
        normal, inverse = normalise(x, K.D, K.EPS)
        gain = grad * normal
        weight = load_vector(w + param_at("norm1.weight", K), K.D)
        grad = normalise_back(grad * weight, normal, inverse, K.D)
    return grad, gain


@triton.jit
def projections_back(rows, dq, dk, dv, q, k, w, waves, position, TOKENS, K: tl.constexpr):
    """Backward of a block's projections of its input `rows`: what was projected, the gradients of
    queries, keys and values before feature map and rotation, and those of what was projected, of
    the rows and, for each row, of linear attention's gain. Linear attention's slopes need q and
    k."""
    normal = norm_input(rows, w, K)
    dq, d_normal = _project_one_back(dq, q, w, waves, position, 0, TOKENS, K)
    dk, by = _project_one_back(dk, k, w, waves, position, 1, TOKENS, K)
    d_normal += by
    dv, by = _project_one_back(dv, k, w, waves, position, 2, TOKENS, K)
    d_normal += by
    grad, gain = _norm_input_back(d_normal, rows, w, K)
    return normal, dq, dk, dv, d_normal, grad, gain


@triton.jit
def to_feed(x, mixed, w, K: tl.constexpr):
    """From a block's input and mixed values, through the out projection: the rows that the
    feed-forward part is added to, its input, and what the LayerNorm's backward pass needs."""
    y = x + dot(mixed, load_transposed(w + param_at("out.weight", K), K.D, K.D))
    if K.SOFTMAX:
        y += load_vector(w + param_at("out.bias", K), K.D)
    normal, inverse = normalise(y, K.D, K.EPS)
    fed = _gained(normal, w, "norm1" if K.SOFTMAX else "norm2", K)
    return fed if K.SOFTMAX else y, fed, normal, inverse


@triton.jit
def feed_forward(y, fed, w, K: tl.constexpr):
    """A block's output, after its feed-forward part; for softmax attention before the LayerNorm."""
    out = y + load_vector(w + param_at("down.bias", K), K.D)
    d = tl.arange(0, K.D)
    SLICE: tl.constexpr = min(K.FF, _SLICE)
    for j in range(0, K.FF, SLICE):
        unit = j + tl.arange(0, SLICE)[None, :]
        weight = tl.load(w + param_at("up.weight", K) + unit * K.D + d[:, None])
        hidden = dot(fed, weight) + tl.load(w + param_at("up.bias", K) + unit)
        act, _ = gelu(hidden)
        weight = w + param_at("down.weight", K)
        out += dot(act, tl.load(weight + d[None, :] * K.FF + j + tl.arange(0, SLICE)[:, None]))
    return out


@triton.jit
def norm_output(out, w, K: tl.constexpr):
    """The last LayerNorm of a softmax attention block: its rows, and what its backward needs."""
    normal, inverse = normalise(out, K.D, K.EPS)
    return _gained(normal, w, "norm2", K), normal, inverse


@triton.jit
def block_tail_back(
    grad, mixed, w, p, again, fed, normal, inverse, last_normal, last_inverse, K: tl.constexpr
):
    """Gradients of the input (through the residual sums) and of the mixed values; this program's
    share of the parameters' gradients goes to `p`.

    Hidden units are in rows and tokens in columns, so that the weight gradients, sums over tokens,
    find their left factors where earlier products left them.
    """
    if K.SOFTMAX:
        grad = _gained_back(grad, last_normal, last_inverse, w, p, again, "norm2", K)
    put_vector(p + param_at("down.bias", K), tl.sum(grad, 0), again, K.D)
    unit, d = tl.arange(0, K.FF), tl.arange(0, K.D)
    up = param_at("up.weight", K) + unit[:, None] * K.D + d[None, :]
    down = param_at("down.weight", K) + d[None, :] * K.FF + unit[:, None]
    bias = param_at("up.bias", K) + unit
    hidden = dot(tl.load(w + up), tl.trans(fed)) + tl.load(w + bias)[:, None]
    act, slope = gelu(hidden)
    put(p + down, dot(along_rows(act), tl.trans(along_rows(tl.trans(grad)))), again)
    d_hidden = dot(tl.load(w + down), tl.trans(grad)) * slope
    put(p + up, dot(along_rows(d_hidden), tl.trans(along_rows(tl.trans(fed)))), again)
    put(p + bias, tl.sum(d_hidden, 1), again)
    d_fed = dot(tl.trans(d_hidden), tl.load(w + up))
    if K.SOFTMAX:
        grad = _gained_back(grad + d_fed, normal, inverse, w, p, again, "norm1", K)
        put_vector(p + param_at("out.bias", K), tl.sum(grad, 0), again, K.D)
    else:
        grad += _gained_back(d_fed, normal, inverse, w, p, again, "norm2", K)
    weight = param_at("out.weight", K)
    put_matrix(p + weight, dot(tl.trans(grad), mixed), again, K.D, K.D)
    return grad, dot(grad, load_matrix(w + weight, K.D, K.D))
