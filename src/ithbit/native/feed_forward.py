"""The feed-forward part that both kinds of attention have, at each token by itself."""

from ithbit.native.simd import Floats, fma, get, normal, part, put
from ithbit.native.tokenwise import clear, linear, linear_back, linear_weights, times


@part
def gelu(m: Floats, x: int, slope: int, count: int) -> None:
    """GELU in place, and its derivative at `slope`."""
    for i in range(count):
        v = get(m, x + i)
        below, density = normal(v)
        put(m, slope + i, fma(v, density, below))
        put(m, x + i, v * below)


@part
def feed_forward(
    p: Floats, up: int, down: int, d: int, wide: int, m: Floats, x: int, h: int, slope: int,
    y: int, tokens: int,
) -> None:  # fmt: skip
    """y = down gelu(up x); a bias follows its weight. The output of gelu and its slope are kept."""
    linear(p, up, up + wide * d, m, x, d, h, wide, tokens)
    gelu(m, h, slope, tokens * wide)
    linear(p, down, down + d * wide, m, h, wide, y, d, tokens)


@part
def feed_forward_back(
    p: Floats, gp: int, up: int, down: int, d: int, wide: int, m: Floats, x: int, h: int,
    slope: int, g: int, gh: int, gx: int, tokens: int,
) -> None:  # fmt: skip
    """gx += the gradient of x, from g, that of y."""
    clear(m, gh, tokens * wide)
    linear_back(p, down, m, g, d, gh, wide, tokens)
    linear_weights(gp, down, down + d * wide, m, g, d, h, wide, tokens)
    times(m, gh, slope, tokens * wide)
    linear_back(p, up, m, gh, wide, gx, d, tokens)
    linear_weights(gp, up, up + wide * d, m, gh, wide, x, d, tokens)
