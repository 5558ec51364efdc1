"""Random faults put into correct layers: the share that the check finds.

A mutant changes one call of a torch function in a correct layer: a mask shifted by a token, a sum
that runs over all tokens, a shift that wraps around, a future token added. Which mutants are broken
is decided by an independent test of every pair of tokens at one length.
"""

import random
from collections.abc import Callable

import pytest
import torch
from tests.support import correct_layers as layers
from torch import Tensor, nn

from ithbit.contract.check import check_contract
from ithbit.contract.findings import CheckSettings

WIDTH, TOKENS = 16, 40
BASES = (
    layers.Attention,
    layers.SlidingWindow,
    layers.Positive,
    layers.LinearCumsum,
    layers.LinearChunked,
    layers.Retention,
    layers.Convolution,
    layers.DoublingScan,
    layers.Norms,
    layers.TokenShift,
    layers.LogScan,
    layers.Gru,
)


def _ahead(x: Tensor, by: int) -> Tensor:
    """Later tokens, zeros at the end."""
    return torch.cat([x[:, by:], torch.zeros_like(x[:, :by])], 1)


def _blocks(x: Tensor, size: int) -> Tensor:
    n = x.shape[1]
    padded = nn.functional.pad(x, (0, 0, 0, -n % size)).unflatten(1, (-1, size))
    return padded.mean(2, keepdim=True).expand(-1, -1, size, -1).flatten(1, 2)[:, :n]


def _at(x: Tensor, tokens: list[int], values: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    some = [t for t in tokens if t < x.shape[1]]
    out[:, some] = values[:, some]
    return out


# What a fault adds to a layer's output or input, for a size and a number drawn at random.
FAULTS: tuple[Callable[[Tensor, float, int], Tensor], ...] = (
    lambda x, size, k: size * _ahead(x, 1 + k % 5),
    lambda x, size, k: size * x.mean(1, keepdim=True).expand_as(x),
    lambda x, size, k: size * _blocks(x, 2 + k % 31),
    lambda x, size, k: size * x.roll(1, 1),
    lambda x, size, k: size * _at(x, [k % 39], _ahead(x, 1)),
    lambda x, size, k: size * _at(x, list(range(k % 16, 2000, 16)), _ahead(x, 1)),
    lambda x, size, k: size * x / (1 + x.std(1, keepdim=True)),
    lambda x, size, k: size * x.amax(1, keepdim=True).expand_as(x),
    lambda x, size, k: size * (x.sum((1, 2), keepdim=True) > 0).to(x).expand_as(x),
    lambda x, size, k: size * _at(x, [0, k % 7], x[:, -1:].expand_as(x)),
    lambda x, size, k: size * x.flip(1).cumsum(1).flip(1),
    lambda x, size, k: size * torch.where(x[:, :1, :1] > 0.5, x.flip(1), torch.zeros_like(x)),
)


class Mutant(nn.Module):
    """A correct layer with a fault, before it, after it, or in some of its channels."""

    def __init__(self, number: int) -> None:
        super().__init__()
        draw = random.Random(number)
        self.base = draw.choice(BASES)(WIDTH)
        self.fault, self.k = draw.randrange(len(FAULTS)), draw.randrange(1 << 16)
        self.size = 10 ** draw.uniform(-5, 0)
        self.place = draw.choice(("before", "after", "channels"))

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "before":
            return self.base(x + FAULTS[self.fault](x, self.size, self.k))
        out = self.base(x)
        added = FAULTS[self.fault](x, self.size, self.k)
        if self.place == "channels":
            added = added * (torch.arange(x.shape[-1]) % 8 == self.k % 8)
        return out + added


def is_broken(make: Callable[[], nn.Module]) -> bool:
    """Whether any output before a token changes with it, over several inputs; by brute force."""
    torch.manual_seed(0)
    module, g = make().double().eval(), torch.Generator().manual_seed(99)
    for _ in range(8):
        x, y = torch.randn(2, TOKENS, WIDTH, generator=g, dtype=torch.float64)
        late = torch.arange(TOKENS) >= torch.arange(1, TOKENS)[:, None]
        copies = x.expand(TOKENS - 1, -1, -1)
        with torch.no_grad():
            change = module(torch.where(late[..., None], y, copies)) - module(copies)
        if (change.abs().amax(-1) * ~late > 1e-12).any():
            return True
    return False


def _share(numbers: range, seconds: float) -> tuple[int, list[int]]:
    broken = [k for k in numbers if is_broken(lambda k=k: Mutant(k))]
    missed = [
        k
        for k in broken
        if not check_contract(lambda k=k: Mutant(k), CheckSettings(seconds=seconds)).exit_code
    ]
    return len(broken), missed


def test_nearly_all_mutants_are_found() -> None:
    n_broken, missed = _share(range(24), 2)
    assert n_broken >= 20
    assert len(missed) <= 1, missed


@pytest.mark.slow
def test_nearly_all_of_many_mutants_are_found() -> None:
    n_broken, missed = _share(range(1000, 1300), 8)
    assert n_broken >= 250
    assert len(missed) <= 0.02 * n_broken, missed
