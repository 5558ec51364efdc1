"""Layers that users might write, for the tests that take one all the way. Loaded by path.

What version 0.1 trained of the first three is on record in `toy_layers_0_1.json`.
"""

import torch
from torch import Tensor, nn


class RunningMean(nn.Module):
    """A running mean through a small network, with a constant that is no parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(2 * width, width)
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return x + self.gain * torch.tanh(self.map(torch.cat([x, mean], -1)) + self.shift)


class LoopCell(nn.Module):
    """A recurrence written as a loop over tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width)
        self.keep = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h, out = torch.zeros_like(x[:, 0]), []
        for drive in self.enter(x).unbind(1):
            h = torch.tanh(drive + self.keep(h))
            out.append(h)
        return torch.stack(out, 1)


class OneByOne(nn.Module):
    """One that asks for a number, so that its seeds cannot be stacked."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        scale = 1.0 if float(x.detach().abs().max()) >= 0 else 2.0
        return x + torch.tanh(self.map(x.cumsum(1))) * scale


class Drops(LoopCell):
    """With dropout, which is off in evaluation mode: it must be so in training too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Prints(LoopCell):
    """One that was left with a line for finding a mistake."""

    def forward(self, x: Tensor) -> Tensor:
        print("shape", tuple(x.shape))
        return super().forward(x)


class RaisesLate(LoopCell):
    """Fails once its weights have moved far enough: after a few epochs. The probe moves them too,
    in float64."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("start", self.enter.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        moved = (self.enter.weight - self.start).detach().abs().max()
        if x.dtype == torch.float32 and float(moved) > 0.02:
            raise ValueError("too far from home")
        return super().forward(x)


class OneLength(LoopCell):
    """Made for the length that it is trained at."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 5:
            raise ValueError("at most 5 tokens")
        return super().forward(x)


class Counts(LoopCell):
    """Keeps count in a buffer: an output depends on what it has seen before."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) + self.calls


class Doubles(nn.Module):
    """Its parameters are not what is trained here."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.map(x.double()).to(x.dtype)
