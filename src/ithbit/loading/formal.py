"""The formal layers of a construction as PyTorch modules, in float64.

Letters and order of operations are those of `theory/layers.py`, which defines each layer. A module
here may be hooked, changed and differentiated; it is the stored weights that are certified.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ithbit.errors import SpecError
from ithbit.reference.models import ReferenceGru as StatesOfGru
from ithbit.theory.layers import (
    FloatArray,
    Gru,
    LinearAttention,
    ReluNet,
    Rnn,
    SoftmaxAttention,
    Ssm,
)
from ithbit.theory.solution import Solution


def _tensor(values: FloatArray) -> Tensor:
    return torch.tensor(values.tolist(), dtype=torch.float64)


def _linear(weight: FloatArray, bias: FloatArray | None = None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=torch.float64)
    linear.weight.data = _tensor(weight)
    if bias is not None:
        linear.bias.data = _tensor(bias)
    return linear


def _net(net: ReluNet) -> nn.Sequential:
    maps = [_linear(*pair) for pair in zip(net.weights, net.biases, strict=True)]
    parts: list[nn.Module] = [maps[0]]
    for each in maps[1:]:
        parts += [nn.ReLU(), each]
    return nn.Sequential(*parts)


class AttentionModule(nn.Module):
    """Definitions 5 and 6: y = N(x + a), a the values averaged by softmax or by phi(q)·phi(k)."""

    def __init__(self, layer: SoftmaxAttention | LinearAttention) -> None:
        super().__init__()
        self.causal = layer.causal
        self.feature = layer.feature if isinstance(layer, LinearAttention) else None
        self.K, self.Q, self.V = _linear(layer.K), _linear(layer.Q), _linear(layer.V)
        self.net = _net(layer.net)

    def weights(self, x: Tensor) -> Tensor:
        """The attention map: batch query key; its rows sum to 1."""
        k, q = self.K(x), self.Q(x)
        if self.feature is not None:
            k, q = (_features(self.feature, each) for each in (k, q))
        scores = q @ k.mT
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        if self.feature is None:
            return (scores.masked_fill(ahead, -torch.inf) if self.causal else scores).softmax(-1)
        scores = scores.masked_fill(ahead, 0.0) if self.causal else scores
        return scores / scores.sum(-1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x + self.weights(x) @ self.V(x))
        return out


def _features(name: str, x: Tensor) -> Tensor:
    return (F.elu(x) if name == "elu+1" else x.relu()) + 1


class StateSpace(nn.Module):
    """Definition 8: h_k = A(x_k) h_{k-1} + B(x_k), y_k = phi(x_k, h_k)."""

    def __init__(self, layer: Ssm) -> None:
        super().__init__()
        self.A, self.B, self.phi = _net(layer.A), _net(layer.B), _net(layer.phi)
        self.register_buffer("h0", _tensor(layer.h0))

    def forward(self, x: Tensor) -> Tensor:
        d = x.shape[-1]
        matrices, inputs = self.A(x).unflatten(-1, (d, d)), self.B(x)
        h = self.get_buffer("h0").expand(len(x), d)
        states = []
        for k in range(x.shape[1]):
            h = (matrices[:, k] @ h.unsqueeze(-1)).squeeze(-1) + inputs[:, k]
            states.append(h)
        out: Tensor = self.phi(torch.cat([x, torch.stack(states, 1)], -1))
        return out


class RecurrentModule(nn.Module):
    """Definition 9: h_0 = 0, h_k = N1(x_k, h_{k-1}), y_k = N2(x_k, h_k)."""

    def __init__(self, layer: Rnn) -> None:
        super().__init__()
        self.N1, self.N2 = _net(layer.N1), _net(layer.N2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        states = []
        for k in range(x.shape[1]):
            h = self.N1(torch.cat([x[:, k], h], -1))
            states.append(h)
        out: Tensor = self.N2(torch.cat([x, torch.stack(states, 1)], -1))
        return out


class GruStates(StatesOfGru):
    """`nn.GRU` with the given weights that returns only its states."""

    def __init__(self, layer: Gru) -> None:
        super().__init__(layer.d_in, layer.d_out, batch_first=True, dtype=torch.float64)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(self, f"{name}_l0").data = _tensor(getattr(layer, name))


_MODULES: dict[str, Any] = {  # by kind of layer
    "softmax": AttentionModule,
    "linear": AttentionModule,
    "ssm": StateSpace,
    "rnn": RecurrentModule,
    "gru": GruStates,
}


class FormalModel(nn.Module):
    """Embedding, layers and output matrix of a construction."""

    def __init__(self, solution: Solution) -> None:
        super().__init__()
        table = solution.embedding
        self.index = nn.Parameter(_tensor(table.index))
        self.bit = nn.Parameter(_tensor(table.bit))
        self.end = None if table.end is None else nn.Parameter(_tensor(table.end))
        self.layers = nn.ModuleList(_MODULES[layer.kind](layer) for layer in solution.layers)
        self.output = _linear(solution.output)

    def embed(self, bits: Tensor, index: Tensor) -> Tensor:
        """The embedded tokens: batch token dim."""
        rows = self.bit[torch.arange(bits.shape[1], device=bits.device), bits]
        query = self.index[index - 1].unsqueeze(1)
        if self.end is None:
            return torch.cat([rows, query], 1)
        return torch.cat([query, rows, self.end.expand(len(bits), 1, -1)], 1)

    def forward(self, bits: Tensor, index: Tensor) -> Tensor:
        """α₁ − α₀, α = A y_last: batch."""
        x = self.embed(bits, index)
        for layer in self.layers:
            x = layer(x)
        alpha = self.output(x[:, -1])
        difference: Tensor = alpha[:, 1] - alpha[:, 0]
        return difference

    def attention(self, bits: Tensor, index: Tensor) -> Tensor:
        """Attention maps: batch layer head query key, with one head."""
        x, maps = self.embed(bits, index), []
        for layer in self.layers:
            if not isinstance(layer, AttentionModule):
                raise SpecError("recurrent layers have no attention maps")
            maps.append(layer.weights(x))
            x = layer(x)
        return torch.stack(maps, 1).unsqueeze(2)
