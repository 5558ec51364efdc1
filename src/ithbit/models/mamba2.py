"""The Mamba2 that is trained: fla's block with expansion 1, one group, convolution of width 3.

Not the paper's formal SSM layer: the state is dim x d_state, the decay depends on the input, and it
comes with a convolution, gates and RMS normalisation. Letters as in the Mamba2 paper: for each
head with A < 0, step dt_t = softplus(...), input x_t, and B_t, C_t shared by the heads,

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T,   y_t = h_t C_t + D x_t.

Computed in the dual form: y_t = sum over s <= t of exp(sum over s < j <= t of dt_j A) (C_t . B_s)
dt_s x_s, one token-by-token matrix per head; the last token needs only one row of it. The exponents
are differences of sums taken in double precision, so that long sums cost no accuracy.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ithbit.layouts import MAMBA2, block_shapes
from ithbit.models.stacked import Params, Stream, along, linear, rms_norm
from ithbit.spec import ModelSpec

_STD = 0.02
_A_RANGE = (1.0, 16.0)
_DT_RANGE = (0.001, 0.1)
_DT_FLOOR = 1e-4


def init_leave(spec: ModelSpec, generator: torch.Generator) -> Params:
    """The final norm, and the library's one-word vocabulary: counted, but never used."""
    d = spec.d_model
    return {
        "norm.weight": torch.ones(d),
        "unused_word": torch.empty(d).normal_(std=_STD, generator=generator),
    }


def leave(params: Params, x: Tensor) -> Tensor:
    """The final normalisation."""
    return rms_norm(x, params["norm.weight"], MAMBA2.norm_eps)


def init_block(spec: ModelSpec, generator: torch.Generator) -> Params:
    """One block as fla initialises it; output projection divided by the square root of depth."""
    out = {name: torch.empty(shape) for name, shape in block_shapes(spec).items()}
    low, high = (math.log(bound) for bound in _DT_RANGE)
    dt = torch.empty(spec.n_heads).uniform_(low, high, generator=generator).exp()
    dt = dt.clamp(min=_DT_FLOOR)
    bound = (spec.d_model * spec.n_layers) ** -0.5
    for name in ("norm.weight", "skip", "gate_norm.weight"):
        out[name].fill_(1)
    for name in ("in.weight", "conv.weight"):
        out[name].normal_(std=_STD, generator=generator)
    out["conv.bias"].zero_()
    out["dt_bias"] = dt + torch.log(-torch.expm1(-dt))  # inverse of softplus
    out["a_log"].uniform_(*_A_RANGE, generator=generator).log_()
    out["out.weight"].uniform_(-bound, bound, generator=generator)
    return out


def block(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """One block's output at all tokens, or only at the last: seed batch token dim."""
    d, n, heads = spec.d_model, spec.d_state, spec.n_heads
    at = stream.last if readout_only else stream.all
    projected = linear(
        rms_norm(stream.rows, params["norm.weight"], MAMBA2.norm_eps), params["in.weight"]
    )
    gate = at(projected[..., :d])
    mixed, dt = stream.all(projected[..., d:]).split([d + 2 * n, heads], dim=-1)
    mixed = F.silu(_causal_conv(mixed, params["conv.weight"], params["conv.bias"]))
    x, B, C = mixed.split([d, n, n], dim=-1)
    dt = F.softplus(dt + along(params["dt_bias"], dt))
    if readout_only:
        C = C[:, :, -1:]
    y = _scan(x.unflatten(-1, (heads, -1)), dt, -params["a_log"].exp(), B, C)
    x = x.unflatten(-1, (heads, -1))[:, :, -C.shape[2] :]
    y = (y + params["skip"][:, None, None, :, None] * x).flatten(-2)
    y = rms_norm(y * F.silu(gate), params["gate_norm.weight"], MAMBA2.norm_eps)
    return at(stream.rows) + linear(y, params["out.weight"])


def _causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise causal convolution over tokens; weight is seed tap dim, the last tap for the token
    itself."""
    n_tokens = x.shape[2]
    padded = F.pad(x, (0, 0, MAMBA2.taps - 1, 0))
    out = along(bias, x).expand_as(x)
    for tap in range(MAMBA2.taps):
        out = torch.addcmul(out, padded[:, :, tap : tap + n_tokens], along(weight[:, tap], x))
    return out


def _scan(x: Tensor, dt: Tensor, a: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The state-space sum at the tokens of C, which are the last ones: seed batch token head
    dim."""
    total = (dt.double() * along(a, dt)).cumsum(2).movedim(-1, 2)  # seed batch head token
    values = (x * dt.unsqueeze(-1)).transpose(2, 3)
    return _DecayedSum.apply(total, C @ B.mT, values).transpose(2, 3)


class _DecayedSum(torch.autograd.Function):
    """sum over s <= t of exp(total_t - total_s) scores_ts values_s, for the last tokens t.

    total (seed, batch, head, token) in double, scores (seed, batch, token t, token s) shared by the
    heads, values (seed, batch, head, token, dim). Nearly all work is on the token-by-token
    matrices; the custom backward pass takes two products and updates them in place.
    """

    @staticmethod
    def forward(ctx: Any, total: Tensor, scores: Tensor, values: Tensor) -> Tensor:
        n, n_tokens = scores.shape[-2:]
        # total = high + low in the working precision, so a difference loses nothing to the size of
        # the sums.
        high = total.to(values.dtype)
        low = (total - high).to(values.dtype)
        decay = high[..., -n:, None] - high[..., None, :]
        decay += low[..., -n:, None]
        decay -= low[..., None, :]
        if n > 1:
            ahead = torch.full_like(decay[0, 0, 0], -torch.inf).triu(1 + n_tokens - n)
            decay += ahead
        decay.exp_()
        weights = scores.unsqueeze(2) * decay
        ctx.save_for_backward(decay, weights, scores, values)
        return weights @ values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, weights, scores, values = ctx.saved_tensors
        d_values = weights.mT @ grad
        d_weights = grad @ values.mT
        d_weights *= decay
        d_scores = d_weights.sum(2)
        d_weights *= scores.unsqueeze(2)  # now the gradient of the exponents
        d_total = -d_weights.sum(-2).double()
        d_total[..., -grad.shape[-2] :] += d_weights.sum(-1)
        return d_total, d_scores, d_values
