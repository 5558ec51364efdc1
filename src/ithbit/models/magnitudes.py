"""Whether float32 can overflow inside a model: how large its numbers may become, from the weights.

The stacked models, compiled code, the kernels, a library's modules and the page take the same sums
in different orders and forms. On NaN, infinity and overflow they need not agree: a maximum may drop
a NaN, and 3e38 + 3e38 - 3e38 depends on the order. Where nothing can overflow, they differ by
rounding alone. So every evaluator but the stacked models asks first: where
`stays_finite` is false, the stacked models decide, or there is no answer, which is never right.

Sound, for weights for which it is true: by induction over the operations of a model, every number
is at most the bound below, times 1 + T 2^-20 or so for rounding. Products of weights and vectors
are bounded by the largest sum of sizes in a row of the weight, normalised vectors by the square
root of their width, attention by its values (weights are at least 0, and divided by their sum),
GELU and SiLU by their argument, gates and states of a GRU by 1. Divisions are by at least an
epsilon, or by a sum that includes 1. Squares inside norms and GELU, differences of two rows of the
token table and sums over tokens count as numbers too. `LIMIT` leaves a factor of 3e8 below
float32's largest number for what a form may add: constants, other scales of scores, partial sums.
NaN and infinite weights give a bound that is not below the limit.

*Not tight*: weights for which it is false may still be harmless. All shipped runs are ten orders of
magnitude below the limit.
"""

import math
from functools import cache

import torch
from torch import Tensor

from ithbit.families import family_named
from ithbit.models.classifier import init
from ithbit.models.stacked import Params, part
from ithbit.spec import ModelSpec
from ithbit.tasks.indexing import n_tokens

LIMIT = 1e30


def stays_finite(params: Params, spec: ModelSpec, n_bits: int) -> Tensor:
    """Whether no number inside each seed's model can overflow float32, on any input of `n_bits`:
    seed. False if there is no bound for such a model. Does not wait for the device.

    >>> from ithbit.models.classifier import init, stack
    >>> spec = ModelSpec("rhi", "gru", n_bits=8)
    >>> good, bad = init(spec, 0), init(spec, 1)
    >>> bad["head.weight"][0, 3] = math.nan
    >>> stays_finite(stack([good, bad]), spec, 8).tolist()
    [True, False]
    """
    if not is_bounded(spec):
        return torch.zeros_like(params["head.bias"][:, 0], dtype=torch.bool)
    return largest_number(params, spec, n_bits) <= LIMIT


def is_bounded(spec: ModelSpec) -> bool:
    """Whether there is a bound for such a model: for the six families, and for no other layer."""
    return family_named(spec.family).kind in _BOUNDS


@cache
def safe_size(spec: ModelSpec) -> float:
    """A size, a power of two, such that no number inside such a model can overflow float32 on
    inputs of its length while no weight is larger; a bound grows with the size of every weight.

    >>> safe_size(ModelSpec("rhi", "softmax-full", n_bits=64))
    2048.0
    """
    like = init(spec, 0)

    def fits(size: float) -> bool:
        weights = {name: torch.full_like(value, size)[None] for name, value in like.items()}
        return bool(largest_number(weights, spec, spec.n_bits)[0] <= LIMIT)

    return max((2.0**k for k in range(-8, 30) if fits(2.0**k)), default=0.0)


def largest_number(params: Params, spec: ModelSpec, n_bits: int) -> Tensor:
    """A bound of every number inside each seed's model, in double precision: seed."""
    params = {name: value.detach().double() for name, value in params.items()}
    bound = _BOUNDS[family_named(spec.family).kind]
    d, tokens = spec.d_model, n_tokens(spec.task, n_bits)
    x = _product(params["embed"], 1.0)  # features of a token are at most 1
    if "positions.polynomial" in params:
        place = (tokens - 1) / (n_tokens(spec.task, spec.n_bits) - 1)
        x = x + _product(params["positions.polynomial"], max(place, place**2))
    elif "positions.learned" in params:
        x = x + _size(params["positions.learned"])
    elif spec.positions == "sinusoidal":
        x = x + 1
    most = 2 * x
    if "enter.type" in params:
        x = x + _size(params["enter.type"])
        most = most + _squares(x, d)
        x = _normal(part(params, "enter"), "norm", d)
    for layer in range(spec.n_layers):
        x, inside = bound(part(params, f"blocks.{layer}"), spec, x, tokens)
        most = most + x + inside
    if "leave.norm.weight" in params:
        most = most + _squares(x, d)
        x = _normal(part(params, "leave"), "norm", d)
    return most + _product(params["head.weight"], x) + _size(params["head.bias"])


def _size(values: Tensor) -> Tensor:
    """The largest size among a seed's numbers."""
    return values.abs().flatten(1).amax(1)


def _product(weight: Tensor, x: Tensor | float) -> Tensor:
    """Of weight times a vector of numbers up to x."""
    return weight.abs().sum(-1).flatten(1).amax(1) * x


def _squares(x: Tensor, d: int) -> Tensor:
    """Of the sum of squares of d numbers up to x, with or without their mean."""
    return 4 * d * x * x


def _normal(params: Params, name: str, d: int) -> Tensor:
    """Of the output of a normalisation with this gain and, if any, offset."""
    gain = _size(params[f"{name}.weight"]) * math.sqrt(d)
    return gain + _size(params[f"{name}.bias"]) if f"{name}.bias" in params else gain


def _feed_forward(params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    hidden = _product(params["up.weight"], x) + _size(params["up.bias"])
    out = _product(params["down.weight"], hidden) + _size(params["down.bias"])
    return out, hidden + hidden * hidden + out


def _softmax(params: Params, spec: ModelSpec, x: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    d = spec.d_model
    q = _product(params["qkv.weight"], x) + _size(params["qkv.bias"])
    scores = 4 * d * q * q  # their differences; twice that where queries and keys are rotated
    y = x + _product(params["out.weight"], q) + _size(params["out.bias"])
    inside = 2 * q + scores + tokens + _squares(y, d)
    x = _normal(params, "norm1", d)
    more, hidden = _feed_forward(params, x)
    inside = inside + x + hidden + _squares(x + more, d)
    return _normal(params, "norm2", d), inside


def _linear(params: Params, spec: ModelSpec, x: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    d = spec.d_model
    v = _product(params["qkv.weight"], _normal(params, "norm1", d))
    feature = v + 1
    weights = tokens * d * feature * feature
    y = x + _product(params["out.weight"], 2 * v)
    inside = _squares(x, d) + 2 * feature + weights + weights * v + _squares(y, d)
    more, hidden = _feed_forward(params, _normal(params, "norm2", d))
    return y + more, inside + hidden


def _gru(params: Params, spec: ModelSpec, x: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    gates = _product(params["ih.weight"], x) + _size(params["ih.bias"])
    hidden = _product(params["hh.weight"], 2.0) + _size(params["hh.bias"])
    return torch.full_like(gates, 2.0), 2 * (gates + hidden)


def _mamba2(params: Params, spec: ModelSpec, x: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    d, state = spec.d_model, spec.d_state
    # Number by number, for a product of five of them is squared: each is a row of the weight, times
    # the gain, with a vector of length at most sqrt(d).
    rows = params["in.weight"] * params["norm.weight"].unsqueeze(1)
    u = rows.square().sum(-1).sqrt() * math.sqrt(d)  # seed row
    gate, mixed, dt = u.split([d, d + 2 * state, spec.n_heads], -1)
    mixed = mixed * params["conv.weight"].abs().sum(1) + params["conv.bias"].abs()
    value, B, C = mixed.split([d, state, state], -1)
    dt = (dt + params["dt_bias"].abs()).amax(1) + 1
    rate = _size(params["a_log"]).exp()
    sums = tokens * dt * rate  # the exponents of decays
    held = tokens * dt * value.amax(1)
    y = held * (B * C).sum(1) + _size(params["skip"]) * value.amax(1)
    inside = 2 * u.sum(1) + dt + mixed.square().sum(1) + sums + rate + held * B.amax(1) + y
    inside = inside + _squares(x, d) + 4 * (y.unsqueeze(1) * gate).square().sum(1)
    return x + _product(params["out.weight"], _normal(params, "gate_norm", d)), inside


_BOUNDS = {"softmax": _softmax, "linear": _linear, "gru": _gru, "mamba2": _mamba2}
