"""Layers that misbehave, each in one way. Loaded by path in the tests."""

import itertools

import torch
from torch import nn

_CALLS = itertools.count()


class Leaky(nn.Module):
    """Causal up to token 4, whose output has seen token 6."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        y = self.mix(x).cumsum(1)
        leak = torch.zeros_like(y)
        leak[:, 3] = x[:, 5]
        return y + leak


class StateOfThree(nn.Module):
    """A linear recurrence with a state of three numbers, read through a nonlinearity."""

    state_size = 3

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 3), nn.Linear(3, width)
        self.turn = nn.Parameter(torch.tensor([[0.9, -0.4, 0.0], [0.4, 0.9, 0.1], [0.0, 0.2, 0.7]]))

    def forward(self, x):
        h, out = torch.zeros_like(x[:, 0, :1]).expand(-1, 3), []
        for u in self.enter(x).unbind(1):
            h = (h @ self.turn.mT + u).tanh()
            out.append(h)
        return self.leave(torch.stack(out, 1))


class UnderstatesItsState(StateOfThree):
    state_size = 2


class Blind(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.value.expand_as(x)


class Rounds(nn.Module):
    """Keeps the sum in steps of 1/8: the derivative is 0."""

    def forward(self, x):
        return torch.round(8 * x.cumsum(1)) / 8


class DeclaresWhatItRounds(Rounds):
    state_size = 4


class Detaches(nn.Module):
    """A recurrent state without a gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0].detach() + 0 * x


class RoundsAPart(StateOfThree):
    """A smooth state of three, and one number more in steps of 1/8."""

    def forward(self, x):
        return super().forward(x) + torch.round(8 * x.mean(-1, keepdim=True).cumsum(1)) / 8


class DetachesAPart(StateOfThree):
    """A smooth state of three, and the sum of all inputs, faintly and without a gradient."""

    def forward(self, x):
        return super().forward(x) + 0.01 * x.cumsum(1).detach()


class StraightThrough(nn.Module):
    """Rounded forward, the identity's gradient backward."""

    def forward(self, x):
        y = x.cumsum(1)
        return y + (y.round() - y).detach()


class Picks(nn.Module):
    """The earlier token of greatest score, which no derivative says."""

    def forward(self, x):
        scores = x @ x.mT
        ahead = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
        best = scores.masked_fill(ahead, -torch.inf).argmax(-1)
        return nn.functional.one_hot(best, x.shape[1]).to(x) @ x


class Kinks(nn.Module):
    """Continuous, with a derivative that jumps: the greatest so far, after a ReLU network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, x):
        return self.map(x.cumsum(1)).cummax(1).values


class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Remembers(nn.Module):
    def forward(self, x):
        return x + next(_CALLS)


class WrongShape(nn.Module):
    def forward(self, x):
        return x[:, 1:]


class Tuple(nn.Module):
    def forward(self, x):
        return x, None


class NoTensor(nn.Module):
    def forward(self, x):
        return "x"


class Raises(nn.Module):
    def forward(self, x):
        raise RuntimeError("no kernel for this size\nand a second line")


class GivesNan(nn.Module):
    def forward(self, x):
        return x * torch.where(x > 0, torch.nan, 1.0)


class MixesBatch(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class FixedWidth(nn.Module):
    """Takes no width: fits one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 3)

    def forward(self, x):
        return self.map(x)


class FailsToBuild(nn.Module):
    def __init__(self, width: int) -> None:
        raise ValueError("heads must divide the width")


class Exits(nn.Module):
    def __init__(self, width: int) -> None:
        raise SystemExit(7)


class ExitsWhenCalled(nn.Module):
    def forward(self, x):
        raise SystemExit(7)


def needs_two(width, heads):
    return nn.Identity()


def gives_a_number(width):
    return 7


def keyword(d_model=5):
    return nn.Linear(d_model, d_model)


number = 7


class ForgetsBatchFirst(nn.Module):
    """A recurrence over the examples of a batch: the first depends on no other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width)

    def forward(self, x):
        return self.cell(x)[0]


class AttendsToTheBatch(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2)

    def forward(self, x):
        ahead = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        return x + self.attention(x, x, x, attn_mask=ahead, need_weights=False)[0]


class NormsTheBatch(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, track_running_stats=False)

    def forward(self, x):
        return self.norm(x.mT).mT


class AlwaysDrops(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.1)


class KeepsAState(nn.Module):
    """Goes on from the call before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map, self.h = nn.Linear(width, width), None

    def forward(self, x):
        y = self.map(x).cumsum(1)
        y = y if self.h is None else y + self.h
        self.h = y[:, -1:].mean(0).detach()
        return y


class Averages(nn.Module):
    """A buffer that no output depends on, so far."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)))
        return self.map(x).cumsum(1)


class Halves(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width, dtype=torch.float16)

    def forward(self, x):
        return x + self.map(x.half()).to(x)


class Overflows(nn.Module):
    """Finite in float64 alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x):
        return (self.map(x) + 100).exp().cumsum(1)


class KeepsItsAttention(nn.Module):
    """Keeps a tensor of the last call, for looking at: no output depends on it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.maps = nn.Linear(width, 3 * width), []

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        self.attention = (q @ k.mT).masked_fill(ahead, -torch.inf).softmax(-1)
        self.maps[:] = [self.attention]
        return x + self.attention @ v


class KeepsAConstant(nn.Module):
    """Uses what it derived from the input before, which is 1 for all, and cannot be stacked."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map, self.one = nn.Linear(width, width), torch.ones(width)

    def forward(self, x):
        before, self.one = self.one.to(x), (0 * x.detach()[0, 0]).exp()
        return self.map(x).cumsum(1) * before + 0 * float(x.detach().max())


class RestsInEvaluation(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.map, self.drop = nn.Linear(width, width), nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.drop(self.norm(self.map(x).cumsum(1).mT).mT)


class TakesTenTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.eye(10))

    def forward(self, x):
        return self.mix @ x
