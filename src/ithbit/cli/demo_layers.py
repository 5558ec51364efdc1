"""The two layers that the demo checks: one that keeps its contract and one that sees the future."""

import torch
from torch import Tensor, nn


class RunningMean(nn.Module):
    """Each token gets a projection of the mean of the tokens up to itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype, device=x.device)
        mixed: Tensor = self.project(x.cumsum(1) / count[:, None])
        return x + mixed


class BlockMean(nn.Module):
    """Each token gets the mean of its whole block of 16, also of the tokens that come later: a
    fault that was found in layers written by programs that search for architectures."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        means = [block.mean(1, keepdim=True).expand_as(block) for block in x.split(16, 1)]
        mixed: Tensor = self.project(torch.cat(means, 1))
        return x + mixed
