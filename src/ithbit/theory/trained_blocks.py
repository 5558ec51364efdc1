"""The trained blocks in numpy, for explicit weights: the twin of `models/` that needs no torch.

BERT (LayerNorm after each sum), pre-LN linear attention (ELU + 1, epsilon in the denominator),
`nn.GRU`, and Mamba2 (convolution of width 3, one group, gated RMSNorm, a final RMSNorm). Tests
compare shapes and logits with `models/`. Written for a few inputs at a time, not for speed.

Arrays are `batch token dim`; parameters are named as in `models/classifier.py`.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ithbit.families import FAMILIES
from ithbit.layouts import LINEAR, MAMBA2, SOFTMAX, model_shapes
from ithbit.spec import ModelSpec
from ithbit.theory.layers import SLICE, Array, Gru, Trace, features, sigmoid

Params = dict[str, Array]

_SHOWN = 64  # attention maps are kept for at most this many tokens


def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The parameters of a spec with polynomial positions, by name.

    >>> shapes(ModelSpec("rhi", "gru", n_bits=4, d_model=2))["blocks.0.ih.weight"]
    (6, 2)
    """
    return model_shapes(replace(spec, positions="polynomial"))


def forward(
    params: Params, spec: ModelSpec, x: Array, last: bool = False
) -> tuple[Array, tuple[Trace, ...]]:
    """The head's input and a trace per block; `last` lets the last block skip earlier tokens."""
    kind = FAMILIES[spec.family].kind
    if kind == "softmax":
        x = _layer_norm(x + params["enter.type"], params, "enter.norm", SOFTMAX.norm_eps)
    block = {"softmax": _bert, "linear": _linear, "gru": _gru}.get(kind, _mamba2)
    traces = []
    for layer in range(spec.n_layers):
        prefix = f"blocks.{layer}."
        own = {name[len(prefix) :]: v for name, v in params.items() if name.startswith(prefix)}
        traces.append(block(own, spec, x, last and layer == spec.n_layers - 1))
        x = traces[-1].output
    if kind == "mamba2":
        x = _rms_norm(x, params["leave.norm.weight"], MAMBA2.norm_eps)
    return x, tuple(traces)


def _layer_norm(x: Array, params: Params, name: str, eps: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred * centred).mean(-1, keepdims=True) + x.dtype.type(eps))
    return centred / scale * params[f"{name}.weight"] + params[f"{name}.bias"]


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    scale = np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(eps))
    return x / scale * weight


def _feed_forward(x: Array, params: Params) -> Array:
    """The feed-forward part; GELU units that write nothing are skipped."""
    used = np.flatnonzero(params["down.weight"].any(0))
    hidden = x @ params["up.weight"][used].T + params["up.bias"][used]
    return _gelu(hidden) @ params["down.weight"][:, used].T + params["down.bias"]


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Array) -> Array:
    if not x.size:
        return x
    return (x * (0.5 * (1 + _erf(x.astype(np.float64) / math.sqrt(2))))).astype(x.dtype)


def _heads(x: Array, heads: int) -> Array:
    """batch token (head dim) -> batch head token dim."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _attend(
    spec: ModelSpec, q: Array, k: Array, v: Array, weigh: Callable[[Array, Array], Array]
) -> tuple[Array, Array | None]:
    """What the attention gives each query, batch token dim, and the first head's weights.

    `weigh` turns products of queries and keys, and the mask of visible keys, into weights. Runs in
    slices of queries; heads without values are skipped, and maps of long inputs are not kept.
    """
    q, k, v = (_heads(t, spec.n_heads) for t in (q, k, v))
    batch, _, queries, size = q.shape
    keys = k.shape[2]
    causal = FAMILIES[spec.family].causal
    mixed = np.zeros((batch, queries, spec.n_heads, size), q.dtype)
    step = max(1, SLICE // (batch * keys))
    maps = []
    for head in range(spec.n_heads):
        if head and not v[:, head].any():
            continue
        for start in range(0, queries, step):
            rows = slice(start, min(start + step, queries))
            ahead = np.arange(keys) > np.arange(keys - queries, keys)[rows, None]
            seen = ~ahead if causal else np.ones_like(ahead)
            weights = weigh(q[:, head, rows] @ k[:, head].swapaxes(-1, -2), seen)
            mixed[:, rows, head] = weights @ v[:, head]
            if not head and keys <= _SHOWN:
                maps.append(weights)
    return mixed.reshape(batch, queries, -1), np.concatenate(maps, 1) if maps else None


def _bert(params: Params, spec: ModelSpec, x: Array, last: bool) -> Trace:
    q, k, v = np.split(x @ params["qkv.weight"].T + params["qkv.bias"], 3, axis=-1)
    x, q = (x[:, -1:], q[:, -1:]) if last else (x, q)

    def weigh(scores: Array, seen: Array) -> Array:
        scores = np.where(seen, scores * x.dtype.type(spec.d_head**-0.5), -np.inf)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        return scores

    mixed, attention = _attend(spec, q, k, v, weigh)
    x = x + mixed @ params["out.weight"].T + params["out.bias"]
    x = _layer_norm(x, params, "norm1", SOFTMAX.norm_eps)
    x = _layer_norm(x + _feed_forward(x, params), params, "norm2", SOFTMAX.norm_eps)
    return Trace(x, attention=attention)


def _linear(params: Params, spec: ModelSpec, x: Array, last: bool) -> Trace:
    normal = _layer_norm(x, params, "norm1", LINEAR.norm_eps)
    q, k, v = np.split(normal @ params["qkv.weight"].T, 3, axis=-1)
    x, q = (x[:, -1:], q[:, -1:]) if last else (x, q)
    q, k = (features(LINEAR.feature, t) for t in (q, k))

    def weigh(products: Array, seen: Array) -> Array:
        products = products * seen
        total = products.sum(-1, keepdims=True) + x.dtype.type(LINEAR.denominator_eps)
        return products / total

    mixed, attention = _attend(spec, q, k, v, weigh)
    x = x + mixed @ params["out.weight"].T
    x = x + _feed_forward(_layer_norm(x, params, "norm2", LINEAR.norm_eps), params)
    return Trace(x, attention=attention)


def _gru(params: Params, spec: ModelSpec, x: Array, last: bool) -> Trace:
    names = ("ih.weight", "hh.weight", "ih.bias", "hh.bias")
    return Gru(*(params[name] for name in names)).trace(x)


def _silu(x: Array) -> Array:
    return x * sigmoid(x)


def _mamba2(params: Params, spec: ModelSpec, x: Array, last: bool) -> Trace:
    d, state, heads = spec.d_model, spec.d_state, spec.n_heads
    projected = _rms_norm(x, params["norm.weight"], MAMBA2.norm_eps) @ params["in.weight"].T
    gate, mixed, dt = np.split(projected, [d, 2 * d + 2 * state], axis=-1)
    padded = np.pad(mixed, ((0, 0), (MAMBA2.taps - 1, 0), (0, 0)))
    taps = [
        padded[:, tap : tap + x.shape[1]] * params["conv.weight"][tap] for tap in range(MAMBA2.taps)
    ]
    mixed = _silu(sum(taps, params["conv.bias"]))
    inner, B, C = np.split(mixed, [d, d + state], axis=-1)
    dt = np.logaddexp(dt + params["dt_bias"], x.dtype.type(0))  # softplus
    decay = np.exp(dt * -np.exp(params["a_log"]))
    kept = np.zeros((len(x), heads, d // heads, state), x.dtype)
    y = np.empty_like(inner).reshape(*x.shape[:2], heads, -1)
    inner = inner.reshape(y.shape)
    for t in range(x.shape[1]):
        written = (dt[:, t, :, None] * inner[:, t])[..., None] * B[:, t, None, None]
        kept = decay[:, t, :, None, None] * kept + written
        y[:, t] = (kept * C[:, t, None, None]).sum(-1)
    y = (y + params["skip"][:, None] * inner).reshape(x.shape)
    y = _rms_norm(y * _silu(gate), params["gate_norm.weight"], MAMBA2.norm_eps)
    out = x + y @ params["out.weight"].T
    return Trace(out, states=y)
