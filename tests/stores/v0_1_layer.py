"""The layers whose probes are in the store that version 0.1 wrote. Do not change: a probe's folder is
named after a digest of this file's bytes."""

import torch
from torch import Tensor, nn


class RunningMean(nn.Module):
    """A running mean through a small network, with a constant that is no parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.state_size = width + 1
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
