"""LayerNorm and root-mean-square normalisation, at each token by itself."""

import numpy as np

from ithbit.layouts import LINEAR, MAMBA2, SOFTMAX
from ithbit.native.simd import Floats, each, fma, get, more, part, put, root, splat, zero

_ONE = np.float32(1)
_TINY, _EPS = np.float32(SOFTMAX.norm_eps), np.float32(LINEAR.norm_eps)
assert LINEAR.norm_eps == MAMBA2.norm_eps  # one epsilon for all but BERT's LayerNorm


@part
def norm(
    p: Floats, w: int, b: int, tiny: bool, m: Floats, x: int, d: int, y: int, z: int, scale: int,
    tokens: int,
) -> None:  # fmt: skip
    """y = w z + b, z the normalised x; z and the scale are kept for the backward pass.

    Without b (b < 0) no mean is subtracted: root-mean-square normalisation.
    """
    share = splat(_ONE / np.float32(d))
    eps = splat(_TINY if tiny else _EPS)
    for t in range(tokens):
        start, mean, square = t * d, zero(), zero()
        if b >= 0:
            for i in range(d):
                mean = mean + get(m, x + start + i)
            mean = mean * share
        for i in range(d):
            v = get(m, x + start + i) - mean
            square = fma(v, v, square)
        inverse = splat(_ONE) / root(fma(square, share, eps))
        put(m, scale + t, inverse)
        for i in range(d):
            v = (get(m, x + start + i) - mean) * inverse
            put(m, z + start + i, v)
            offset = each(p, b + i) if b >= 0 else zero()
            put(m, y + start + i, fma(v, each(p, w + i), offset))


@part
def norm_back(
    p: Floats, gp: int, w: int, b: int, m: Floats, g: int, d: int, z: int, scale: int, gx: int,
    tokens: int,
) -> None:  # fmt: skip
    """gx += the gradient of x, from g, that of y."""
    share = splat(_ONE / np.float32(d))
    for i in range(d):
        for_w, for_b = zero(), zero()
        for t in range(tokens):
            v = get(m, g + t * d + i)
            for_w, for_b = fma(v, get(m, z + t * d + i), for_w), for_b + v
        more(m, gp + w + i, for_w)
        if b >= 0:
            more(m, gp + b + i, for_b)
    for t in range(tokens):
        start, mean, along = t * d, zero(), zero()
        for i in range(d):
            v = get(m, g + start + i) * each(p, w + i)
            mean, along = mean + v, fma(v, get(m, z + start + i), along)
        inverse, along = get(m, scale + t), along * share
        mean = mean * share if b >= 0 else zero()
        for i in range(d):
            v = get(m, g + start + i) * each(p, w + i) - mean - get(m, z + start + i) * along
            put(m, gx + start + i, fma(v, inverse, get(m, gx + start + i)))
