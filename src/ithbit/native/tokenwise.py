"""What acts on each token by itself, for a group of examples: forward and backward passes.

`p` is a run's row of parameters; `w` and `b` are where a parameter starts in it. The other names
are places in the memory m, (token, number); the gradients of p are added to those at `gp`.
"""

from ithbit.native.fours import fma4, get4, more4, put4, weigh4, zero4
from ithbit.native.simd import Floats, each, fma, get, more, part, put, zero


@part
def clear(m: Floats, x: int, count: int) -> None:
    """x = 0."""
    for i in range(x, x + count):
        put(m, i, zero())


@part
def add(m: Floats, x: int, y: int, count: int) -> None:
    """x += y."""
    for i in range(count):
        put(m, x + i, get(m, x + i) + get(m, y + i))


@part
def times(m: Floats, x: int, y: int, count: int) -> None:
    """x *= y."""
    for i in range(count):
        put(m, x + i, get(m, x + i) * get(m, y + i))


@part
def linear(
    p: Floats, w: int, b: int, m: Floats, x: int, n_in: int, y: int, n_out: int, tokens: int
) -> None:
    """y = W x + b at each token, four numbers at a time; no bias if b < 0."""
    for t in range(tokens):
        source, target = x + t * n_in, y + t * n_out
        for o in range(0, n_out - 3, 4):
            sums = zero4()
            if b >= 0:
                at = b + o
                sums = each(p, at), each(p, at + 1), each(p, at + 2), each(p, at + 3)
            for i in range(n_in):
                sums = weigh4(p, w + o * n_in + i, n_in, get(m, source + i), sums)
            put4(m, target + o, sums)
        for o in range(n_out - n_out % 4, n_out):
            y_0 = each(p, b + o) if b >= 0 else zero()
            for i in range(n_in):
                y_0 = fma(each(p, w + o * n_in + i), get(m, source + i), y_0)
            put(m, target + o, y_0)


@part
def linear_back(
    p: Floats, w: int, m: Floats, g: int, n_out: int, gx: int, n_in: int, tokens: int
) -> None:
    """gx += W^T g at each token."""
    for t in range(tokens):
        source, target = g + t * n_out, gx + t * n_in
        for i in range(0, n_in - 3, 4):
            sums = get4(m, target + i)
            for o in range(n_out):
                sums = weigh4(p, w + o * n_in + i, 1, get(m, source + o), sums)
            put4(m, target + i, sums)
        for i in range(n_in - n_in % 4, n_in):
            x_0 = get(m, target + i)
            for o in range(n_out):
                x_0 = fma(each(p, w + o * n_in + i), get(m, source + o), x_0)
            put(m, target + i, x_0)


@part
def linear_weights(
    gp: int, w: int, b: int, m: Floats, g: int, n_out: int, x: int, n_in: int, tokens: int
) -> None:
    """gW += g x^T, gb += g, summed over tokens: four by two numbers of W at a time."""
    tiled = n_out - n_out % 4
    for o in range(0, tiled, 4):
        for i in range(0, n_in - 1, 2):
            left = right = zero4()
            for t in range(tokens):
                grad, value = g + t * n_out + o, x + t * n_in + i
                left = fma4(get(m, value), m, grad, left)
                right = fma4(get(m, value + 1), m, grad, right)
            at = gp + w + o * n_in + i
            more4(m, at, n_in, left)
            more4(m, at + 1, n_in, right)
    for o in range(n_out):
        for i in range(n_in - n_in % 2 if o < tiled else 0, n_in):
            a_0 = zero()
            for t in range(tokens):
                a_0 = fma(get(m, g + t * n_out + o), get(m, x + t * n_in + i), a_0)
            more(m, gp + w + o * n_in + i, a_0)
        if b >= 0:
            a_0 = zero()
            for t in range(tokens):
                a_0 = a_0 + get(m, g + t * n_out + o)
            more(m, gp + b + o, a_0)
