"""What acts on each token by itself, for a group of examples: forward, and backward beside it.

`p` is a run's row of parameters; `w` and `b` are where a parameter starts in it. The other names
are places in the memory m, (token, number); at `gp` are the gradients of p, to which is added.
"""

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
    """y = W x + b at each token; no b where it is below 0. Four numbers at a time."""
    for t in range(tokens):
        here, there = x + t * n_in, y + t * n_out
        for o in range(0, n_out - 3, 4):
            y_0 = y_1 = y_2 = y_3 = zero()
            if b >= 0:
                y_0, y_1 = each(p, b + o), each(p, b + o + 1)
                y_2, y_3 = each(p, b + o + 2), each(p, b + o + 3)
            w_0 = w + o * n_in
            for i in range(n_in):
                v = get(m, here + i)
                y_0 = fma(each(p, w_0 + i), v, y_0)
                y_1 = fma(each(p, w_0 + n_in + i), v, y_1)
                y_2 = fma(each(p, w_0 + 2 * n_in + i), v, y_2)
                y_3 = fma(each(p, w_0 + 3 * n_in + i), v, y_3)
            put(m, there + o, y_0)
            put(m, there + o + 1, y_1)
            put(m, there + o + 2, y_2)
            put(m, there + o + 3, y_3)
        for o in range(n_out - n_out % 4, n_out):
            y_0 = each(p, b + o) if b >= 0 else zero()
            for i in range(n_in):
                y_0 = fma(each(p, w + o * n_in + i), get(m, here + i), y_0)
            put(m, there + o, y_0)


@part
def linear_back(
    p: Floats, w: int, m: Floats, g: int, n_out: int, gx: int, n_in: int, tokens: int
) -> None:
    """gx += W^T g at each token."""
    for t in range(tokens):
        here, there = g + t * n_out, gx + t * n_in
        for i in range(0, n_in - 3, 4):
            at = there + i
            x_0, x_1, x_2, x_3 = get(m, at), get(m, at + 1), get(m, at + 2), get(m, at + 3)
            for o in range(n_out):
                v, w_0 = get(m, here + o), w + o * n_in + i
                x_0 = fma(each(p, w_0), v, x_0)
                x_1 = fma(each(p, w_0 + 1), v, x_1)
                x_2 = fma(each(p, w_0 + 2), v, x_2)
                x_3 = fma(each(p, w_0 + 3), v, x_3)
            put(m, at, x_0)
            put(m, at + 1, x_1)
            put(m, at + 2, x_2)
            put(m, at + 3, x_3)
        for i in range(n_in - n_in % 4, n_in):
            x_0 = get(m, there + i)
            for o in range(n_out):
                x_0 = fma(each(p, w + o * n_in + i), get(m, here + o), x_0)
            put(m, there + i, x_0)


@part
def linear_weights(
    gp: int, w: int, b: int, m: Floats, g: int, n_out: int, x: int, n_in: int, tokens: int
) -> None:
    """gW += g x^T, gb += g, summed over tokens: four by two numbers of W at a time."""
    tiled = n_out - n_out % 4
    for o in range(0, tiled, 4):
        for i in range(0, n_in - 1, 2):
            a_0 = a_1 = a_2 = a_3 = b_0 = b_1 = b_2 = b_3 = zero()
            for t in range(tokens):
                here, there = g + t * n_out + o, x + t * n_in + i
                x_0, x_1, v = get(m, there), get(m, there + 1), get(m, here)
                a_0, b_0, v = fma(v, x_0, a_0), fma(v, x_1, b_0), get(m, here + 1)
                a_1, b_1, v = fma(v, x_0, a_1), fma(v, x_1, b_1), get(m, here + 2)
                a_2, b_2, v = fma(v, x_0, a_2), fma(v, x_1, b_2), get(m, here + 3)
                a_3, b_3 = fma(v, x_0, a_3), fma(v, x_1, b_3)
            at = w + o * n_in + i
            more(m, gp + at, a_0)
            more(m, gp + at + 1, b_0)
            more(m, gp + at + n_in, a_1)
            more(m, gp + at + n_in + 1, b_1)
            more(m, gp + at + 2 * n_in, a_2)
            more(m, gp + at + 2 * n_in + 1, b_2)
            more(m, gp + at + 3 * n_in, a_3)
            more(m, gp + at + 3 * n_in + 1, b_3)
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
