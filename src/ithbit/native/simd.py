"""A vector of lanes as a single numba value, which LLVM then keeps in registers.

A lane is an example. Kernels are written for one example, with vectors in place of numbers, so
lanes put no condition on the widths of a model, and only gradients are summed across lanes. The
memory of a kernel is one flat float32 array m; its i-th vector is `get(m, i)`, and what is stored
there is referred to by the number of its first vector.
"""

import operator
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from ithbit.native.building import folder

# As many float32 as fill a register of AVX-512, else of AVX.
LANES = 16 if get_host_cpu_features().get("avx512f") else 8
_IR = ir.VectorType(ir.FloatType(), LANES)
_INT = ir.VectorType(ir.IntType(32), LANES)

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
Table = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Bits = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Indices = np.ndarray[tuple[int], np.dtype[np.int64]]


class LayerArgs(NamedTuple):
    """A layer of a run, as the parts of a kernel see it."""

    p: Floats  # the run's parameters
    gp: int  # where the memory has their gradients, followed by the sums of `collect`
    at: Indices  # where each parameter of the layer starts in p
    kept: Indices  # where the memory has what the layer keeps, first its input
    above: int  # and its output, which the next layer keeps
    used: Indices  # and what is temporary
    d: int
    heads: int
    inner: int  # width of the feed-forward part, or of Mamba2's state
    leave: int  # where the parameters of what follows the last layer start
    tokens: int
    outputs: int  # how many of the last tokens are wanted: all or, of the last layer, one
    first: bool
    causal: bool


_TYPES: dict[Any, Any] = {
    int: types.int64,
    bool: types.boolean,
    Floats: types.float32[::1],
    Table: types.float32[:, ::1],
    Bits: types.uint8[:, ::1],
    Indices: types.int64[::1],
}
_TYPES[LayerArgs] = types.NamedTuple(
    [_TYPES[kind] for kind in LayerArgs.__annotations__.values()], LayerArgs
)
# Nothing in Python calls them, so they need no wrappers for it: without, they compile in four
# fifths of the time.
_INSIDE = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
inline = njit(forceinline=True, **_INSIDE)  # for functions over vectors


def compiled(function: Callable[..., Any], kinds: Any, **options: Any) -> Any:
    """A function compiled for arguments of these kinds, or loaded from the folder of
    `building.py`."""
    code_folder, before = folder(), config.CACHE_DIR
    try:
        config.CACHE_DIR = str(code_folder or "")
        return njit([kinds], cache=code_folder is not None, **options)(function)
    finally:
        config.CACHE_DIR = before


def part(function: Any) -> Any:
    """A part of a kernel, over arrays, for the types in its annotations: numba would compile it
    again for every constant that it is called with."""
    kinds = [_TYPES[kind] for name, kind in function.__annotations__.items() if name != "return"]
    return compiled(function, tuple(kinds), **_INSIDE)


class _Vector(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"lanes{LANES}")


vector = _Vector()


@register_model(_Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _IR)


def _made(result: Any, **kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """A function for kernels, by the code that builds it from a context, a builder and values."""

    def declare(code: Callable[..., Any]) -> Any:
        def build(context: Any, builder: Any, _: Any, values: Any) -> Any:
            return code(context, builder, *values)

        def typed(context: Any, *arguments: Any) -> Any:
            return result(*kinds.values()), build

        parameter = partial(Parameter, kind=Parameter.POSITIONAL_OR_KEYWORD)
        signature = Signature([parameter("context"), *map(parameter, kinds)])
        vars(typed)["__signature__"] = signature  # numba counts the arguments by it
        return intrinsic(typed)

    return declare


def _operator(python: Callable[..., Any], name: str) -> None:
    """Let an operator of Python take two vectors."""

    @_made(vector, a=vector, b=vector)
    def apply(_: Any, builder: Any, a: Any, b: Any) -> Any:
        return getattr(builder, name)(a, b)

    @overload(python, strict=False, jit_options={"forceinline": True, **_INSIDE})
    def of_vectors(a: Any, b: Any) -> Any:
        return (lambda a, b: apply(a, b)) if a is vector and b is vector else None


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")


def _llvm(name: str, *arguments: str) -> Any:
    """One of LLVM's own functions of vectors."""
    kind = ir.FunctionType(_IR, [_IR] * len(arguments))
    full = f"llvm.{name}.v{LANES}f32"

    @_made(vector, **dict.fromkeys(arguments, vector))
    def call(_: Any, builder: Any, *values: Any) -> Any:
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, full), values)

    return call


fma = _llvm("fmuladd", "a", "b", "c")  # a b + c, in one instruction where the CPU has it
root = _llvm("sqrt", "a")
signed_like = _llvm("copysign", "a", "b")  # the size of the first with the sign of the second
_rounded = _llvm("rint", "a")


def _number(context: Any, builder: Any, a: Any, i: Any) -> Any:
    """Where the i-th number of an array is."""
    return builder.gep(context.make_array(_TYPES[Floats])(context, builder, a).data, [i])


def _place(context: Any, builder: Any, a: Any, i: Any) -> Any:
    """Where the i-th vector of an array is."""
    at = builder.mul(i, ir.Constant(i.type, LANES))
    return builder.bitcast(_number(context, builder, a, at), _IR.as_pointer())


@_made(vector, a=_TYPES[Floats], i=types.int64)
def get(context: Any, builder: Any, a: Any, i: Any) -> Any:
    """The i-th vector of an array."""
    return builder.load(_place(context, builder, a, i), align=4)


@_made(types.none, a=_TYPES[Floats], i=types.int64, x=vector)
def put(context: Any, builder: Any, a: Any, i: Any, x: Any) -> Any:
    """Set the i-th vector of an array."""
    builder.store(x, _place(context, builder, a, i), align=4)
    return context.get_dummy_value()


def _in_every_lane(builder: Any, x: Any) -> Any:
    nothing = ir.Constant(_IR, ir.Undefined)
    one = builder.insert_element(nothing, x, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(_INT, [0] * LANES))


@_made(vector, x=types.float32)
def splat(_: Any, builder: Any, x: Any) -> Any:
    """A number in every lane."""
    return _in_every_lane(builder, x)


@_made(vector, a=_TYPES[Floats], i=types.int64)
def each(context: Any, builder: Any, a: Any, i: Any) -> Any:
    """The number a[i] in every lane, i >= 0: numba's own a[i] first checks for a negative index."""
    return _in_every_lane(builder, builder.load(_number(context, builder, a, i)))


@_made(vector)
def zero(_: Any, builder: Any) -> Any:
    """0 in every lane."""
    return ir.Constant(_IR, None)


@_made(vector, a=vector, b=vector)
def largest(_: Any, builder: Any, a: Any, b: Any) -> Any:
    """The larger of two, in each lane; b if either is NaN, so that a constant a keeps b's NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@_made(vector, a=vector, b=vector, x=vector, y=vector)
def where_less(_: Any, builder: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """x where a < b, else y; also y if either is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), x, y)


@_made(types.float32, x=vector)
def total(_: Any, builder: Any, x: Any) -> Any:
    """The sum of the lanes, by repeated halving."""
    width = LANES
    while width > 1:
        width //= 2
        kind = ir.VectorType(ir.IntType(32), width)
        lanes = [ir.Constant(kind, list(range(at, at + width))) for at in (0, width)]
        x = builder.fadd(*(builder.shuffle_vector(x, x, half) for half in lanes))
    return builder.extract_element(x, ir.Constant(ir.IntType(32), 0))


@_made(vector, x=vector)
def _power_of_two(_: Any, builder: Any, x: Any) -> Any:
    """2^x for integers x from -126 to 127, built from the bits of a float."""
    exponent = builder.add(builder.fptosi(x, _INT), ir.Constant(_INT, [127] * LANES))
    return builder.bitcast(builder.shl(exponent, ir.Constant(_INT, [23] * LANES)), _IR)


_F = np.float32
_LOG2_E, _LN2_HIGH, _LN2_LOW = _F(1.4426950408889634), _F(-0.693359375), _F(2.12194440e-4)
_LEAST, _MOST = _F(-104.0), _F(89.0)  # beyond, e^x is 0 or infinite
_ONE, _TWO, _HALF = _F(1), _F(2), _F(0.5)
_E2, _E3, _E4, _E5, _E6, _E7 = (_F(1 / k) for k in (2, 6, 24, 120, 720, 5040))
_ROOT_HALF, _ROOT_PI = _F(0.5**0.5), _F((2 * np.pi) ** -0.5)
_FAR = _F(40.0)  # tanh of half of it is 1
# erfc(z) e^z^2 = t (A1 + ... + A5 t^4), t = 1 / (1 + z / 2), to 2.2e-9 e^z^2 for z above 0.88.
_A1, _A2, _A3 = _F(0.27507633), _F(0.34512241), _F(0.02205554)
_A4, _A5, _CUT = _F(0.56452998), _F(-0.20681921), _F(0.92)
# erf(z) = z + z (B0 + ... + B5 z^10) below, to rounding.
_B5, _B4, _B3 = _F(-5.96761703e-4), _F(4.99119423e-3), _F(-2.67681349e-2)
_B2, _B1, _B0 = _F(1.12819925e-1), _F(-3.76125336e-1), _F(1.28379166e-1)
_L3, _L5, _L7, _L9, _L11, _L13 = (_F(1 / k) for k in (3, 5, 7, 9, 11, 13))


@inline
def more(m: Any, i: Any, x: Any) -> None:
    """Add to the i-th vector of an array."""
    put(m, i, get(m, i) + x)


@inline
def _parts(x: Any) -> tuple[Any, Any]:
    """k and r with x = k log 2 + r, |r| at most about log(2) / 2."""
    k = _rounded(x * splat(_LOG2_E))
    return k, fma(k, splat(_LN2_LOW), fma(k, splat(_LN2_HIGH), x))


@inline
def exp(x: Any) -> Any:
    """e^x, which may underflow and overflow as it does elsewhere: a model may multiply what is
    below the least normal float by any number, so it must not be replaced by that.

    The power of 2 is applied in two steps, since by itself it need not be a float.
    """
    k, r = _parts(zero() - largest(splat(-_MOST), zero() - largest(splat(_LEAST), x)))
    y = fma(fma(fma(splat(_E6), r, splat(_E5)), r, splat(_E4)), r, splat(_E3))
    y = fma(fma(fma(y, r, splat(_E2)), r, splat(_ONE)), r, splat(_ONE))
    half = _rounded(k * splat(_HALF))
    return y * _power_of_two(half) * _power_of_two(k - half)


@inline
def sigmoid(x: Any) -> Any:
    return splat(_ONE) / (splat(_ONE) + exp(zero() - x))


@inline
def tanh(x: Any) -> Any:
    """u / (u + 2) for u = e^2|x| - 1, with the sign of x: exact to rounding for a tiny x too."""
    size = largest(x, zero() - x)
    k, r = _parts(zero() - largest(splat(-_FAR), zero() - (size + size)))
    y = fma(fma(fma(splat(_E7), r, splat(_E6)), r, splat(_E5)), r, splat(_E4))
    y = fma(fma(y, r, splat(_E3)), r, splat(_E2))
    power = _power_of_two(k)
    u = fma(fma(y * r, r, r), power, power - splat(_ONE))
    return signed_like(u / (u + splat(_TWO)), x)


@inline
def softplus(x: Any) -> Any:
    """log(1 + e^x) = max(x, 0) + log(1 + u), u = e^-|x|, by the series of artanh(u / (2 + u))."""
    u = exp(zero() - largest(x, zero() - x))
    z = u / (splat(_TWO) + u)
    s = z * z
    y = fma(fma(fma(splat(_L13), s, splat(_L11)), s, splat(_L9)), s, splat(_L7))
    y = fma(fma(fma(y, s, splat(_L5)), s, splat(_L3)), s, splat(_ONE))
    return fma(z + z, y, largest(x, zero()))


@inline
def normal(x: Any) -> tuple[Any, Any]:
    """The normal distribution's probability up to x, and its density there.

    To rounding: a feed-forward part may multiply by any number what is left of a difference.
    """
    density = exp(x * x * splat(-_HALF))  # still to be scaled
    z = largest(x, zero() - x) * splat(_ROOT_HALF)
    t = splat(_ONE) / fma(splat(_HALF), z, splat(_ONE))
    y = fma(fma(splat(_A5), t, splat(_A4)), t, splat(_A3))
    y = fma(fma(y, t, splat(_A2)), t, splat(_A1)) * t
    far = splat(_ONE) - y * density
    s = z * z
    y = fma(fma(fma(splat(_B5), s, splat(_B4)), s, splat(_B3)), s, splat(_B2))
    y = fma(fma(y, s, splat(_B1)), s, splat(_B0))
    erf = signed_like(where_less(z, splat(_CUT), fma(y, z, z), far), x)
    return fma(erf, splat(_HALF), splat(_HALF)), density * splat(_ROOT_PI)
