"""The GRU that is trained: `torch.nn.GRU`, gates in its order (reset r, update z, candidate n).

    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
    z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
    n = tanh(W_in x + b_in + r (W_hn h + b_hn))
    h' = n + z (h - n),  h_0 = 0

`nn.GRU` itself has no seed axis and does not support vmap, so the recurrence is written out with
its own backward pass: one product and a few pointwise operations per token, and the weight
gradients in one product.
"""

from typing import Any

import torch
from torch import Tensor

from ithbit.layouts import block_shapes
from ithbit.models.stacked import Params, Stream, linear, uniform, weight_gradient
from ithbit.spec import ModelSpec


def init_block(spec: ModelSpec, generator: torch.Generator) -> Params:
    """One layer with PyTorch's defaults: everything uniform within 1 / sqrt(hidden)."""
    return {
        name: uniform(generator, *shape, fan_in=spec.d_model)
        for name, shape in block_shapes(spec).items()
    }


def block(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """One layer's states at all tokens, or only at the last: seed batch token dim."""
    gates = stream.all(linear(stream.rows, params["ih.weight"], params["ih.bias"]))
    states = _Recurrence.apply(gates, params["hh.weight"], params["hh.bias"])
    return states[:, :, -1:] if readout_only else states


class _Recurrence(torch.autograd.Function):
    """States h_1 … h_T from input gates (seed, batch, token, 3 dim); h_0 = 0."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        n_seeds, batch, n_tokens, width = gates.shape
        d = width // 3
        rzn = torch.empty_like(gates)
        candidate = gates.new_empty(n_seeds, batch, n_tokens, d)  # W_hn h + b_hn
        states = gates.new_zeros(n_seeds, batch, n_tokens + 1, d)
        transposed, offset = weight.mT, bias.unsqueeze(1)
        for t in range(n_tokens):
            h, gate, now = states[:, :, t], gates[:, :, t], rzn[:, :, t]
            hidden = torch.baddbmm(offset, h, transposed)
            torch.add(gate[..., : 2 * d], hidden[..., : 2 * d], out=now[..., : 2 * d]).sigmoid_()
            r, z, n = now.split(d, dim=-1)
            candidate[:, :, t] = hidden[..., 2 * d :]
            torch.addcmul(gate[..., 2 * d :], r, hidden[..., 2 * d :], out=n).tanh_()
            torch.lerp(n, h, z, out=states[:, :, t + 1])
        ctx.save_for_backward(rzn, candidate, states, weight)
        return states[:, :, 1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rzn, candidate, states, weight = ctx.saved_tensors
        d, n_tokens = candidate.shape[-1], candidate.shape[2]
        r, z, n = rzn.split(d, dim=-1)
        before = states[:, :, :-1]
        # Everything outside the recurrence, for all tokens at once: the derivatives of h' with
        # respect to the sums inside n and z, and of the sum inside n with respect to that inside r.
        to_n = (1 - z) * (1 - n * n)
        to_z = (before - n) * z * (1 - z)
        to_r = candidate * r * (1 - r)
        d_hidden = torch.empty_like(rzn)  # gradient of W_h h + b_h
        d_input = torch.empty_like(rzn)  # gradient of the input gates: the same except for n
        dh = torch.zeros_like(states[:, :, 0])
        for t in range(n_tokens - 1, -1, -1):
            dh = dh + grad[:, :, t]
            now = d_hidden[:, :, t]
            dn = torch.mul(dh, to_n[:, :, t], out=d_input[:, :, t, 2 * d :])
            torch.mul(dn, to_r[:, :, t], out=now[..., :d])
            torch.mul(dh, to_z[:, :, t], out=now[..., d : 2 * d])
            torch.mul(dn, r[:, :, t], out=now[..., 2 * d :])
            dh = torch.baddbmm(dh * z[:, :, t], now, weight)
        d_input[..., : 2 * d] = d_hidden[..., : 2 * d]
        rows = d_hidden.flatten(1, 2)
        return d_input, weight_gradient(rows, before.flatten(1, 2)), rows.sum(1)
