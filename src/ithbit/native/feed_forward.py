"""The feed-forward part that both kinds of attention have, at each token by itself."""

from ithbit.native.simd import Floats, LayerArgs, fma, get, normal, part, put
from ithbit.native.tokenwise import clear, linear, linear_back, linear_weights, times


@part
def feed_forward(
    layer: LayerArgs, up: int, down: int, m: Floats, x: int, h: int, slope: int, y: int
) -> None:
    """y = down gelu(up x); a bias follows its weight. The output of gelu and its slope are kept."""
    p, d, wide, tokens = layer.p, layer.d, layer.inner, layer.outputs
    linear(p, up, up + wide * d, m, x, d, h, wide, tokens)
    for i in range(tokens * wide):
        v = get(m, h + i)
        below, density = normal(v)
        put(m, slope + i, fma(v, density, below))
        put(m, h + i, v * below)
    linear(p, down, down + d * wide, m, h, wide, y, d, tokens)


@part
def feed_forward_back(
    layer: LayerArgs, up: int, down: int, m: Floats, x: int, h: int, slope: int, g: int, gh: int,
    gx: int,
) -> None:  # fmt: skip
    """gx += the gradient of x, from g, that of y."""
    p, gp, d, wide, tokens = layer.p, layer.gp, layer.d, layer.inner, layer.outputs
    clear(m, gh, tokens * wide)
    linear_back(p, down, m, g, d, gh, wide, tokens)
    linear_weights(gp, down, down + d * wide, m, g, d, h, wide, tokens)
    times(m, gh, slope, tokens * wide)
    linear_back(p, up, m, gh, wide, gx, d, tokens)
    linear_weights(gp, up, up + wide * d, m, gh, wide, x, d, tokens)
