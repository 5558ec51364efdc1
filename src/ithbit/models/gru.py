"""GRU as it is trained: `torch.nn.GRU`, gates in its order (reset r, update z, candidate n).

    r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
    z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
    n = tanh(W_in x + b_in + r (W_hn h + b_hn))
    h' = n + z (h - n),  h_0 = 0

`nn.GRU` itself has no seed axis and refuses vmap, so the recurrence is written out, with its own
backward pass: one product and a few pointwise operations a token, weight gradients in one product.
"""

from typing import Any

import torch
from torch import Tensor

from ithbit.models.spec import ModelSpec
from ithbit.models.stacked import Params, linear
from ithbit.models.stream import Stream


def init_block(spec: ModelSpec, generator: torch.Generator) -> Params:
    """One layer with PyTorch's defaults: everything uniform within 1 / sqrt(hidden)."""
    d = spec.d_model
    shapes = {
        "ih.weight": (3 * d, d),
        "hh.weight": (3 * d, d),
        "ih.bias": (3 * d,),
        "hh.bias": (3 * d,),
    }
    return {
        name: torch.empty(shape).uniform_(-(d**-0.5), d**-0.5, generator=generator)
        for name, shape in shapes.items()
    }


def block(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """One layer's states at all tokens, or at the last alone: seed batch token dim."""
    gates = stream.all(linear(stream.rows, params["ih.weight"], params["ih.bias"]))
    states = _Recurrence.apply(gates, params["hh.weight"], params["hh.bias"])
    return states[:, :, -1:] if readout_only else states


class _Recurrence(torch.autograd.Function):
    """States h_1 … h_T from input gates (seed, batch, token, 3 dim); h_0 = 0."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        n_seeds, batch, n_tokens, width = gates.shape
        d = width // 3
        # Token first, so that each step reads one block; a copy, since it is overwritten.
        gates = gates.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)
        states = gates.new_zeros(n_tokens + 1, n_seeds, batch, d)
        candidate_in = gates.new_empty(n_tokens, n_seeds, batch, d)  # W_hn h + b_hn
        transposed, offset = weight.mT, bias.unsqueeze(1)
        for t in range(n_tokens):
            h, gate = states[t], gates[t]
            hidden = torch.baddbmm(offset, h, transposed)
            rz = gate[..., : 2 * d].add_(hidden[..., : 2 * d]).sigmoid_()
            candidate_in[t] = hidden[..., 2 * d :]
            n = gate[..., 2 * d :].addcmul_(rz[..., :d], candidate_in[t]).tanh_()
            torch.lerp(n, h, rz[..., d:], out=states[t + 1])
        # `gates` now holds r, z and n of every step.
        ctx.save_for_backward(gates, candidate_in, states, weight)
        return states[1:].permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates, candidate_in, states, weight = ctx.saved_tensors
        n_tokens, n_seeds, batch, d = candidate_in.shape
        grad = grad.permute(2, 0, 1, 3)
        r, z, n = gates.split(d, dim=-1)
        # Factors that need no recurrence, for all steps at once:
        # dh'/dn pre-activation, dh'/dz pre-activation, d(candidate)/dr pre-activation.
        to_n = (1 - z) * (1 - n * n)
        to_z = (states[:-1] - n) * z * (1 - z)
        to_r = candidate_in * r * (1 - r)
        d_input = torch.empty_like(gates)  # gradient of the input gates
        d_hidden = torch.empty_like(gates)  # gradient of W_h h + b_h
        dh = torch.zeros_like(states[0])
        for t in range(n_tokens - 1, -1, -1):
            dh = dh + grad[t]
            dn = dh * to_n[t]
            torch.mul(dn, to_r[t], out=d_hidden[t, ..., :d])
            torch.mul(dh, to_z[t], out=d_hidden[t, ..., d : 2 * d])
            torch.mul(dn, r[t], out=d_hidden[t, ..., 2 * d :])
            d_input[t, ..., 2 * d :] = dn
            dh = torch.baddbmm(dh * z[t], d_hidden[t], weight)
        d_input[..., : 2 * d] = d_hidden[..., : 2 * d]
        rows = d_hidden.transpose(0, 1).reshape(n_seeds, n_tokens * batch, 3 * d)
        before = states[:-1].transpose(0, 1).reshape(n_seeds, n_tokens * batch, d)
        d_weight = torch.bmm(rows.mT, before)
        return d_input.permute(1, 2, 0, 3), d_weight, rows.sum(1)
