"""Four vectors at a time: independent sums fill the pipeline of a CPU."""

from typing import Any

from ithbit.native.simd import each, fma, get, inline, more, put, zero


@inline
def zero4() -> Any:
    return zero(), zero(), zero(), zero()


@inline
def get4(m: Any, i: Any) -> Any:
    """Four vectors of an array from the i-th on."""
    return get(m, i), get(m, i + 1), get(m, i + 2), get(m, i + 3)


@inline
def put4(m: Any, i: Any, x: Any) -> None:
    """Set four vectors of an array from the i-th on."""
    put(m, i, x[0])
    put(m, i + 1, x[1])
    put(m, i + 2, x[2])
    put(m, i + 3, x[3])


@inline
def more4(m: Any, i: Any, step: Any, x: Any) -> None:
    """Add to four vectors of an array that lie `step` apart."""
    more(m, i, x[0])
    more(m, i + step, x[1])
    more(m, i + 2 * step, x[2])
    more(m, i + 3 * step, x[3])


@inline
def fma4(a: Any, m: Any, i: Any, x: Any) -> Any:
    """x + a b for the four vectors b of an array from the i-th on."""
    return (
        fma(a, get(m, i), x[0]),
        fma(a, get(m, i + 1), x[1]),
        fma(a, get(m, i + 2), x[2]),
        fma(a, get(m, i + 3), x[3]),
    )


@inline
def weigh4(p: Any, i: Any, step: Any, a: Any, x: Any) -> Any:
    """x + w a for the four numbers w of p from the i-th on that lie `step` apart."""
    return (
        fma(each(p, i), a, x[0]),
        fma(each(p, i + step), a, x[1]),
        fma(each(p, i + 2 * step), a, x[2]),
        fma(each(p, i + 3 * step), a, x[3]),
    )
