"""The feed-forward part that both kinds of attention have, at each token by itself."""

from typing import Any

from ithbit.native.simd import apart, part
from ithbit.native.tokenwise import clear, gelu, linear, linear_back, linear_weights, times


@part
def feed_forward(
    p: Any, up: Any, down: Any, d: Any, m: Any, x: Any, x0: Any, h: Any, slope: Any, h0: Any,
    y: Any, tokens: Any,
) -> None:  # fmt: skip
    """y = down gelu(up x); a bias follows its weight. What gelu gave is kept, and its slope."""
    apart()
    linear(p, up, up + m * d, x, x0, d, h, h0, m, tokens)
    gelu(h, h0, slope, h0, tokens * m)
    linear(p, down, down + d * m, h, h0, m, y, 0, d, tokens)


@part
def feed_forward_back(
    p: Any, gp: Any, up: Any, down: Any, d: Any, m: Any, x: Any, x0: Any, h: Any, slope: Any,
    h0: Any, g: Any, gh: Any, gx: Any, tokens: Any,
) -> None:  # fmt: skip
    """gx += what g, the gradient of y, is for x."""
    apart()
    clear(gh, 0, tokens * m)
    linear_back(p, down, g, 0, d, gh, 0, m, tokens)
    linear_weights(gp, down, down + d * m, g, 0, d, h, h0, m, tokens)
    times(gh, 0, slope, h0, tokens * m)
    linear_back(p, up, gh, 0, m, gx, 0, d, tokens)
    linear_weights(gp, up, up + m * d, gh, 0, m, x, x0, d, tokens)
