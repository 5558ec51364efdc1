"""Three layers of a dozen lines each, as a user would write them for `ithbit train` and `probe`."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeakyIntegrator(nn.Module):
    """h_t = a h_{t-1} + (1 - a) W x_t with one decay a per coordinate, then a small network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.state_size = width
        self.decay = nn.Parameter(torch.linspace(0.0, 4.0, width))
        self.enter = nn.Linear(width, width)
        self.leave = nn.Sequential(
            nn.Linear(2 * width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        a, h, states = self.decay.sigmoid(), torch.zeros_like(x[:, 0]), []
        for drive in self.enter(x).unbind(1):
            h = a * h + (1 - a) * drive
            states.append(h)
        return x + self.leave(torch.cat([torch.stack(states, 1), x], -1))


class SlidingWindow(nn.Module):
    """Softmax attention to the last four tokens, including the current one."""

    def __init__(self, width: int, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.qkv = nn.Linear(width, 3 * width)
        self.leave = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        ones = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)
        seen = ones.tril() & ones.triu(1 - self.window)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        return x + self.leave(x + scores.softmax(-1) @ v)


class Hybrid(nn.Module):
    """Half the width uses linear attention, half softmax attention, both causal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.leave = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        (q, p), (k, j), (v, u) = (t.split(half, -1) for t in self.qkv(x).chunk(3, -1))
        weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
        linear = weights @ v / weights.sum(-1, keepdim=True)
        ahead = torch.ones_like(weights[0], dtype=torch.bool).triu(1)
        softmax = (p @ j.mT / half**0.5).masked_fill(ahead, -torch.inf).softmax(-1) @ u
        return x + self.leave(x + torch.cat([linear, softmax], -1))
