"""The parts of a softmax or linear attention block that act on each token separately, and their
backward passes: projections, LayerNorms, the out projection and the feed-forward part.

Functions for kernels, on rows of tokens; `w` is where a block's parameters start, `p` where this
program's share of their gradients starts.
"""

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


@triton.constexpr_function
def param_at(name, D, FF, SOFTMAX):
    """Where a parameter starts within its block: the order of each family's `init_block`."""
    sizes = {
        "norm1.weight": D,
        "norm1.bias": D,
        "qkv.weight": 3 * D * D,
        "qkv.bias": 3 * D,
        "out.weight": D * D,
        "out.bias": D,
        "norm2.weight": D,
        "norm2.bias": D,
        "up.weight": FF * D,
        "up.bias": FF,
        "down.weight": D * FF,
        "down.bias": D,
    }
    if SOFTMAX:
        order = [key for key in sizes if "norm" not in key] + [k for k in sizes if "norm" in k]
    else:
        order = [key for key in sizes if key not in ("qkv.bias", "out.bias")]
    return sum(sizes[key] for key in order[: order.index(name)])


@triton.constexpr_function
def norm_eps(SOFTMAX):
    """The epsilon of the blocks' LayerNorms: BERT's for softmax attention, else PyTorch's."""
    return 1e-12 if SOFTMAX else 1e-5


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
def project_one(
    rows, w, waves, position, which: tl.constexpr,
    TOKENS, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
    ROTARY: tl.constexpr,
):  # fmt: skip
    """Queries (0), keys (1) or values (2) of the rows that `norm_input` gives."""
    out = dot(
        rows, load_transposed(w + param_at("qkv.weight", D, FF, SOFTMAX) + which * D * D, D, D)
    )
    if SOFTMAX:
        out += load_vector(w + param_at("qkv.bias", D, FF, SOFTMAX) + which * D, D)
    elif which < 2:
        out = tl.exp(tl.minimum(out, 0.0)) + tl.maximum(out, 0.0)
    if ROTARY and which < 2:
        out = _turn(out, waves, position, 1.0, TOKENS, D)
    return out


@triton.jit
def _project_one_back(
    grad, out, w, waves, position, which: tl.constexpr,
    TOKENS, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
    ROTARY: tl.constexpr,
):  # fmt: skip
    """Gradients before the feature map and the rotation, and of the rows that were projected."""
    if ROTARY and which < 2:
        grad = _turn(grad, waves, position, -1.0, TOKENS, D)
    if not SOFTMAX and which < 2:
        grad *= tl.minimum(out, 1.0)  # the slope of ELU + 1, from its value
    weight = load_matrix(w + param_at("qkv.weight", D, FF, SOFTMAX) + which * D * D, D, D)
    return grad, dot(grad, weight)


@triton.jit
def norm_input(x, w, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr):
    """What a block projects: its input, for linear attention after a LayerNorm."""
    if not SOFTMAX:
        x, _ = normalise(x, D, norm_eps(SOFTMAX))
        x = x * load_vector(w + param_at("norm1.weight", D, FF, SOFTMAX), D)
        x += load_vector(w + param_at("norm1.bias", D, FF, SOFTMAX), D)
    return x


@triton.jit
def _norm_input_back(grad, x, w, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr):
    """Gradient of `norm_input`'s input, and that of its gain for each row."""
    gain = grad
    if not SOFTMAX:
        normal, inverse = normalise(x, D, norm_eps(SOFTMAX))
        gain = grad * normal
        weight = load_vector(w + param_at("norm1.weight", D, FF, SOFTMAX), D)
        grad = normalise_back(grad * weight, normal, inverse, D)
    return grad, gain


@triton.jit
def projections_back(
    rows, dq, dk, dv, q, k, w, waves, position,
    TOKENS, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Backward of a block's projections of its input `rows`: what was projected, the gradients of
    queries, keys and values before feature map and rotation, and those of what was projected, of
    the rows and, for each row, of linear attention's gain. Linear attention's slopes need q and
    k."""
    normal = norm_input(rows, w, D, FF, SOFTMAX)
    dq, d_normal = _project_one_back(dq, q, w, waves, position, 0, TOKENS, D, FF, SOFTMAX, ROTARY)
    dk, by = _project_one_back(dk, k, w, waves, position, 1, TOKENS, D, FF, SOFTMAX, ROTARY)
    d_normal += by
    dv, by = _project_one_back(dv, k, w, waves, position, 2, TOKENS, D, FF, SOFTMAX, ROTARY)
    d_normal += by
    grad, gain = _norm_input_back(d_normal, rows, w, D, FF, SOFTMAX)
    return normal, dq, dk, dv, d_normal, grad, gain


@triton.jit
def to_feed(x, mixed, w, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr):
    """From a block's input and mixed values, through the out projection: the rows that the
    feed-forward part is added to, its input, and what the LayerNorm's backward pass needs."""
    y = x + dot(mixed, load_transposed(w + param_at("out.weight", D, FF, SOFTMAX), D, D))
    if SOFTMAX:
        y += load_vector(w + param_at("out.bias", D, FF, SOFTMAX), D)
        normal, inverse = normalise(y, D, norm_eps(SOFTMAX))
        fed = normal * load_vector(w + param_at("norm1.weight", D, FF, SOFTMAX), D)
        fed += load_vector(w + param_at("norm1.bias", D, FF, SOFTMAX), D)
        y = fed
    else:
        normal, inverse = normalise(y, D, norm_eps(SOFTMAX))
        fed = normal * load_vector(w + param_at("norm2.weight", D, FF, SOFTMAX), D)
        fed += load_vector(w + param_at("norm2.bias", D, FF, SOFTMAX), D)
    return y, fed, normal, inverse


@triton.jit
def feed_forward(y, fed, w, D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr):
    """A block's output, after its feed-forward part; for softmax attention before the LayerNorm."""
    out = y + load_vector(w + param_at("down.bias", D, FF, SOFTMAX), D)
    d = tl.arange(0, D)
    SLICE: tl.constexpr = min(FF, _SLICE)
    for j in range(0, FF, SLICE):
        unit = j + tl.arange(0, SLICE)[None, :]
        weight = tl.load(w + param_at("up.weight", D, FF, SOFTMAX) + unit * D + d[:, None])
        hidden = dot(fed, weight) + tl.load(w + param_at("up.bias", D, FF, SOFTMAX) + unit)
        act, _ = gelu(hidden)
        weight = w + param_at("down.weight", D, FF, SOFTMAX)
        out += dot(act, tl.load(weight + d[None, :] * FF + j + tl.arange(0, SLICE)[:, None]))
    return out


@triton.jit
def norm_output(out, w, D: tl.constexpr, FF: tl.constexpr):
    """The last LayerNorm of a softmax attention block: its rows, and what its backward needs."""
    normal, inverse = normalise(out, D, norm_eps(True))
    out = normal * load_vector(w + param_at("norm2.weight", D, FF, True), D)
    return out + load_vector(w + param_at("norm2.bias", D, FF, True), D), normal, inverse


@triton.jit
def block_tail_back(
    grad, mixed, w, p, again, fed, normal, inverse, last_normal, last_inverse,
    D: tl.constexpr, FF: tl.constexpr, SOFTMAX: tl.constexpr,
):  # fmt: skip
    """Gradients of the input (through the residual sums) and of the mixed values; this program's
    share of the parameters' gradients goes to `p`.

    Hidden units are in rows and tokens in columns, so that the weight gradients, sums over tokens,
    find their left factors where earlier products left them.
    """
    if SOFTMAX:
        put_vector(
            p + param_at("norm2.weight", D, FF, SOFTMAX), tl.sum(grad * last_normal, 0), again, D
        )
        put_vector(p + param_at("norm2.bias", D, FF, SOFTMAX), tl.sum(grad, 0), again, D)
        gain = load_vector(w + param_at("norm2.weight", D, FF, SOFTMAX), D)
        grad = normalise_back(grad * gain, last_normal, last_inverse, D)
    put_vector(p + param_at("down.bias", D, FF, SOFTMAX), tl.sum(grad, 0), again, D)
    unit, d = tl.arange(0, FF), tl.arange(0, D)
    up = param_at("up.weight", D, FF, SOFTMAX) + unit[:, None] * D + d[None, :]
    down = param_at("down.weight", D, FF, SOFTMAX) + d[None, :] * FF + unit[:, None]
    bias = param_at("up.bias", D, FF, SOFTMAX) + unit
    hidden = dot(tl.load(w + up), tl.trans(fed)) + tl.load(w + bias)[:, None]
    act, slope = gelu(hidden)
    put(p + down, dot(along_rows(act), tl.trans(along_rows(tl.trans(grad)))), again)
    d_hidden = dot(tl.load(w + down), tl.trans(grad)) * slope
    put(p + up, dot(along_rows(d_hidden), tl.trans(along_rows(tl.trans(fed)))), again)
    put(p + bias, tl.sum(d_hidden, 1), again)
    d_fed = dot(tl.trans(d_hidden), tl.load(w + up))
    if SOFTMAX:
        grad += d_fed
        put_vector(p + param_at("norm1.weight", D, FF, SOFTMAX), tl.sum(grad * normal, 0), again, D)
        put_vector(p + param_at("norm1.bias", D, FF, SOFTMAX), tl.sum(grad, 0), again, D)
        gain = load_vector(w + param_at("norm1.weight", D, FF, SOFTMAX), D)
        grad = normalise_back(grad * gain, normal, inverse, D)
        put_vector(p + param_at("out.bias", D, FF, SOFTMAX), tl.sum(grad, 0), again, D)
    else:
        put_vector(
            p + param_at("norm2.weight", D, FF, SOFTMAX), tl.sum(d_fed * normal, 0), again, D
        )
        put_vector(p + param_at("norm2.bias", D, FF, SOFTMAX), tl.sum(d_fed, 0), again, D)
        gain = load_vector(w + param_at("norm2.weight", D, FF, SOFTMAX), D)
        grad += normalise_back(d_fed * gain, normal, inverse, D)
    put_matrix(p + param_at("out.weight", D, FF, SOFTMAX), dot(tl.trans(grad), mixed), again, D, D)
    return grad, dot(grad, load_matrix(w + param_at("out.weight", D, FF, SOFTMAX), D, D))
