"""Layers that break the contract as reports describe it, each with the clause that it breaks."""

import itertools
import math

import torch
import torch.nn.functional as F
from tests.support.correct_layers import (
    Attention,
    FourierInFloat32,
    InBfloat16,
    LinearChunked,
    SelectiveScan,
    TokenShift,
)
from torch import Tensor, nn

_CALLS = itertools.count()


class Plain(nn.Module):
    """A linear map and a running mean, which others add their fault to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count = torch.arange(1, x.shape[1] + 1).to(x)[:, None]
        y = self.map(x).cumsum(1) / count
        return y + self.fault(x)

    def fault(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Bidirectional(Attention):
    def mask(self, n, x):
        return torch.ones(n, n, dtype=torch.bool)


class SeesTheNext(Attention):
    def mask(self, n, x):
        return torch.ones(n, n, dtype=torch.bool).tril(1)


class WrongDiagonal(Attention):
    """A window that is one off: the last column of the mask is open."""

    def mask(self, n, x):
        seen = super().mask(n, x)
        seen[n // 2, -1] = True
        return seen


class BlockMean(Plain):
    """The mean over whole blocks of 16."""

    size = 16

    def fault(self, x):
        n, size = x.shape[1], self.size
        blocks = F.pad(x, (0, 0, 0, -n % size)).unflatten(1, (-1, size)).mean(2, keepdim=True)
        return blocks.expand(-1, -1, size, -1).flatten(1, 2)[:, :n]


class BlockMean64(BlockMean):
    size = 64


class NormOverTime(Plain):
    def fault(self, x):
        return 0.1 * x / (x.std(1, keepdim=True) + 1)


class MeanFaint(Plain):
    """A ten-thousandth of the mean over all tokens."""

    def fault(self, x):
        return 1e-4 * x.mean(1, keepdim=True)


class InstanceNorm(Plain):
    def __init__(self, width):
        super().__init__(width)
        self.norm = nn.GroupNorm(2, width)

    def fault(self, x):
        return self.norm(x.mT).mT


class ExpertChoice(nn.Module):
    """Experts choose their tokens from the whole sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.route, self.experts = nn.Linear(width, 2), nn.Linear(width, 2 * width)

    def forward(self, x):
        score = self.route(x).softmax(-1)
        chosen = score >= score.topk(max(1, x.shape[1] // 2), 1).values[:, -1:]
        each = self.experts(x).unflatten(-1, (2, -1))
        return x + ((score * chosen).unsqueeze(-1) * each).sum(2)


class Capacity(ExpertChoice):
    """Tokens past an expert's capacity, counted over the batch, are dropped."""

    def forward(self, x):
        choice = self.route(x).argmax(-1)
        place = F.one_hot(choice.flatten(), 2).cumsum(0).view(*choice.shape, 2)
        kept = place.gather(-1, choice.unsqueeze(-1)) <= choice.numel() * 0.3
        return x + kept * self.experts(x)[..., : x.shape[-1]]


class ChunkBorder(Plain):
    """The last output of each chunk of 64 reads the first token of the next."""

    size = 64

    def fault(self, x):
        out = torch.zeros_like(x)
        out[:, self.size - 1 : -1 : self.size] = x[:, self.size :: self.size]
        return out


class ChunkBorder100(ChunkBorder):
    size = 100


class ChunkBorder256(ChunkBorder):
    size = 256


class OnlyAtOdds(Plain):
    """At 65, 257 or 300 tokens, the remainder is padded on the wrong side."""

    def fault(self, x):
        return x.flip(1) if x.shape[1] in (65, 257, 300) else torch.zeros_like(x)


class LongOnly(Plain):
    """A path for more than 512 tokens."""

    def fault(self, x):
        return 0.1 * x.mean(1, keepdim=True) * (x.shape[1] > 512)


class InclusiveChunks(LinearChunked):
    """The state includes the own chunk: read twice, and too early."""

    def mixed(self, q, k, v, x):
        n, size = x.shape[1], self.size
        q, k, v = (F.pad(each, (0, 0, 0, -n % size)).unflatten(2, (-1, size)) for each in (q, k, v))
        state = (k.mT @ v).cumsum(2)
        return ((q @ k.mT).tril() @ v + q @ state).flatten(2, 3)[:, :, :n]


class CircularConvolution(nn.Module):
    """Fourier transforms without padding wrap around."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 3, width))

    def forward(self, x):
        n = x.shape[1]
        kernel = torch.exp(-self.decay * torch.arange(n).to(x)[:, None] / 20)
        return torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(kernel, dim=0), n, dim=1)


class FaintInFourier(FourierInFloat32):
    """A leak of 1e-4 inside the rounding of Fourier transforms in float32."""

    def forward(self, x):
        return super().forward(x) + 1e-4 * x.mean(1, keepdim=True)


class SamePadding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding="same")

    def forward(self, x):
        return self.conv(x.mT).mT


class ShiftsTheWrongWay(TokenShift):
    def forward(self, x):
        return self.value(self.key(torch.lerp(x.roll(-1, 1), x, self.mix)).relu())


class RollsAround(TokenShift):
    """torch.roll: the first token sees the last."""

    def forward(self, x):
        return self.value(self.key(torch.lerp(x.roll(1, 1), x, self.mix)).relu())


class ByTheLargest(Plain):
    """Scaled by the largest number of the sequence, as a quantiser does."""

    def fault(self, x):
        top = x.abs().amax((1, 2), keepdim=True)
        return (x / top * 127).round() * top / 127


class SortedTokens(nn.Module):
    def forward(self, x):
        return x.sort(1).values


class TopTokens(Plain):
    """Only the half of the tokens with the largest norm is computed (mixture of depths)."""

    def fault(self, x):
        norm = x.norm(dim=-1, keepdim=True)
        return x * (norm >= norm.median(1, keepdim=True).values)


class ZeroGate(Plain):
    """A leak behind a gate that starts at zero."""

    def __init__(self, width):
        super().__init__(width)
        self.gate = nn.Parameter(torch.zeros(width))

    def fault(self, x):
        return self.gate * x.flip(1)


class LargeOnly(Plain):
    """Clips by a statistic of the sequence, which matters for large tokens alone."""

    def fault(self, x):
        return x.clamp(max=10 + x.relu().mean((1, 2), keepdim=True)) * 0.1 + torch.where(
            x.abs().amax((1, 2), keepdim=True) > 8, 0.1, 0.0
        )


class BordersInTraining(ChunkBorder):
    size = 36

    def fault(self, x):
        return super().fault(x) * self.training


class BordersInBfloat16(ChunkBorder):
    size = 36

    def fault(self, x):
        return super().fault(x) * (x.dtype == torch.bfloat16)


class BatchNormInTraining(Plain):
    def __init__(self, width):
        super().__init__(width)
        self.norm = nn.BatchNorm1d(width)

    def fault(self, x):
        return self.norm(x.mT).mT


class OneMaskInTraining(Attention):
    """The mask is forgotten on the path with dropout."""

    def mask(self, n, x):
        seen = super().mask(n, x)
        return torch.ones_like(seen) if self.training else seen


class OnlyInBfloat16(Attention):
    """A mask of -30, which is not enough."""

    def mixed(self, q, k, v, x):
        lost = -30.0 if q.dtype == torch.bfloat16 else -torch.inf
        seen = self.mask(x.shape[1], x)
        return (10 * self.scores(q, k)).masked_fill(~seen, lost).softmax(-1) @ v


class OnlyInFloat32(Attention):
    """Another kernel for float32, without the mask."""

    def mixed(self, q, k, v, x):
        if q.dtype == torch.float32:
            return F.scaled_dot_product_attention(q, k, v)
        return super().mixed(q, k, v, x)


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.cumsum(1)

    @staticmethod
    def backward(ctx, grad):
        return grad.cumsum(1)


class OnlyBackward(nn.Module):
    def forward(self, x):
        return _WrongBackward.apply(x)


class StraightThroughAll(Plain):
    """Nothing forward, everything backward."""

    def fault(self, x):
        mean = x.mean(1, keepdim=True)
        return mean - mean.detach()


class StraightThroughBorders(Plain):
    """Its gradient alone crosses the borders of chunks of 12."""

    def fault(self, x):
        ahead = F.pad(x, (0, 0, 0, 1))[:, 1:] * (torch.arange(x.shape[1]) % 12 == 11)[:, None]
        return ahead - ahead.detach()


class WindowOfLargeInputs(Attention):
    """The window is shorter where all numbers together are large."""

    def mask(self, n, x):
        return super().mask(n, x).triu(-8 if x.abs().mean() > 1.5 else -n)


class MixesTheBatch(Plain):
    def fault(self, x):
        return 0.1 * x.mean(0, keepdim=True)


class BatchFirstForgotten(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width)

    def forward(self, x):
        return self.cell(x)[0]


class SqueezesOne(Plain):
    """At a batch of one, the axis is lost and the sum goes over time."""

    def fault(self, x):
        return 0.1 * x.squeeze(0).sum(0) if len(x) == 1 else 0.1 * x.cumsum(1)


class Remembers(Plain):
    """Its state stays from call to call."""

    def __init__(self, width):
        super().__init__(width)
        self.state = None

    def fault(self, x):
        before = 0.0 if self.state is None else self.state
        self.state = x[:, -1:].mean(0).detach()
        return torch.zeros_like(x) + before


class CountsItsCalls(Plain):
    def fault(self, x):
        return torch.full_like(x, 1e-3 * next(_CALLS))


class KeepsItsTable(Plain):
    """A table made for the first input serves shorter ones from its end."""

    table = None

    def fault(self, x):
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = torch.linspace(-1, 1, x.shape[1]).to(x)[:, None]
        return self.table[-x.shape[1] :].expand_as(x)


class GivesItsBuffer(Plain):
    """The output is in memory that the next call of that shape uses again."""

    def forward(self, x):
        y = super().forward(x)
        held = getattr(self, "held", y.detach())
        self.held = held if held.shape == y.shape and held.dtype == y.dtype else y.detach()
        return y if y.requires_grad else self.held.copy_(y)


class KeepsItsFirstLength(Plain):
    """Tokens after as many as the first input had are summed from the end."""

    def fault(self, x):
        self.first = getattr(self, "first", x.shape[1])
        late = x[:, self.first :].flip(1).cumsum(1).flip(1)
        return torch.cat([torch.zeros_like(x[:, : self.first]), late], 1)


class OpensAfterCalls(Plain):
    """Has a fault at 100 tokens after calls with 33 to 60."""

    def fault(self, x):
        n, is_open = x.shape[1], getattr(self, "is_open", False)
        self.is_open = is_open or 33 <= n < 60
        return x.mean(1, keepdim=True) * (n == 100 and is_open)


class NoiseInEvaluation(Plain):
    def fault(self, x):
        return F.dropout(x, 0.1)


class ChangesItsInput(Plain):
    def forward(self, x):
        x += 1
        return self.map(x).cumsum(1)


class ByTotalLength(Plain):
    def fault(self, x):
        return x * math.log(x.shape[1])


class ByTotalLengthInBfloat16(InBfloat16):
    def mixed(self, q, k, v, x):
        return super().mixed(q, k, v, x) * (1 + 1 / math.sqrt(x.shape[1]))


class CountsFromTheEnd(Plain):
    def fault(self, x):
        return torch.arange(x.shape[1]).flip(0).to(x)[:, None].expand_as(x) / 100


class LosesItsState(SelectiveScan):
    """Starts again every 64 tokens."""

    size = 64

    def forward(self, x):
        return torch.cat([super(LosesItsState, self).forward(p) for p in x.split(self.size, 1)], 1)


class LosesItsStateAt256(nn.Module):
    def forward(self, x):
        return torch.cat([p.cumsum(1) for p in x.split(256, 1)], 1)


class LosesAHead(nn.Module):
    """One half of the width starts again every 32 tokens."""

    def forward(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat([a.cumsum(1), *[torch.cat([p.cumsum(1) for p in b.split(32, 1)], 1)]], -1)


class StepClamps(SelectiveScan):
    """The step size is clamped token by token, but not in sequences."""

    def forward(self, x):
        state, outs = None, []
        for each in x.unbind(1):
            y, state = super().step(each, state)
            outs.append(y)
        return torch.stack(outs, 1)

    def step(self, x, state):
        y, state = super().step(x, state)
        return y.clamp(max=0.3), state


class ScanDiffers(SelectiveScan):
    """Each token alone is right; the sequence decays twice."""

    def forward(self, x):
        a, u, c = self.coefficients(x)
        state, outs = torch.zeros_like(u[:, 0]), []
        for t in range(x.shape[1]):
            state = a[:, t] ** 1.01 * state + u[:, t]
            outs.append((state * c[:, t]).sum(-1))
        return torch.stack(outs, 1)


class ForgetsItsStateArgument(nn.Module):
    """A state that is passed in is ignored if there are several tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)

    def forward(self, x, state=None):
        return self.cell(x, state if x.shape[1] == 1 else None)


class Understates(SelectiveScan):
    def __init__(self, width):
        super().__init__(width)
        self.state_size = width


class OverflowsAhead(nn.Module):
    """exp over the whole sequence without its largest number taken off."""

    def forward(self, x):
        weight = x.exp()
        return (weight * x).cumsum(1) / weight.sum(1, keepdim=True) * weight.sum(1, keepdim=True)


class IgnoresItsMask(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x, attn_mask=None):
        return self.mha(x, x, x, need_weights=False)[0]


class HashesTheFuture(Plain):
    """Not a leak that shrinks: the lowest bits of the sum decide."""

    def fault(self, x):
        return ((x.sum((1, 2), keepdim=True) * 1e9).floor() % 2) * 0.1


class AddsToTheSecondOfTwo(Plain):
    def fault(self, x):
        return 0.1 * torch.arange(len(x)).to(x)[:, None, None] * (len(x) == 2)


def _is_cast(y: Tensor, x: Tensor) -> bool:
    """Whether autocast has chosen another type."""
    return y.dtype != x.dtype


class OnlyUnderAutocast(Plain):
    def fault(self, x):
        y = self.map(x)
        return 0.01 * y.flip(1) if _is_cast(y, x) else torch.zeros_like(y)


class MixesUnderAutocast(Plain):
    def fault(self, x):
        y = self.map(x)
        return 0.1 * y.amax(0, keepdim=True) if _is_cast(y, x) else torch.zeros_like(y)


class MixesInBfloat16(Plain):
    """One scale of all rows where numbers are rounded."""

    def forward(self, x):
        y = super().forward(x)
        if x.dtype != torch.bfloat16:
            return y
        scale = x[:, 0].abs().max() / 10
        return (y / scale).round() * scale


class OnlyInBatchesInBfloat16(Plain):
    def fault(self, x):
        return 0.1 * x.flip(1) if x.dtype == torch.bfloat16 and len(x) > 1 else 0 * x


class OnlyInMixedBatchesInBfloat16(OnlyInBatchesInBfloat16):
    """One row alone does not show it, nor do equal rows."""

    def fault(self, x):
        return super().fault(x) * (x != x[:1]).any()


BROKEN = [
    (Bidirectional, "causal"), (SeesTheNext, "causal"), (WrongDiagonal, "causal"),
    (BlockMean, "causal"), (BlockMean64, "causal"), (NormOverTime, "causal"),
    (MeanFaint, "causal"), (InstanceNorm, "causal"), (ExpertChoice, "causal"),
    (Capacity, "batch"), (ChunkBorder, "causal"), (ChunkBorder100, "causal"),
    (ChunkBorder256, "causal"), (OnlyAtOdds, "causal"), (LongOnly, "causal"),
    (InclusiveChunks, "causal"), (CircularConvolution, "causal"), (FaintInFourier, "causal"),
    (SamePadding, "causal"), (ShiftsTheWrongWay, "causal"), (RollsAround, "causal"),
    (ByTheLargest, "causal"), (SortedTokens, "causal"), (TopTokens, "causal"),
    (ZeroGate, "causal"), (LargeOnly, "causal"), (BatchNormInTraining, "train-eval"),
    (OneMaskInTraining, "train-eval"), (OnlyInBfloat16, "bfloat16"), (OnlyInFloat32, "float32"),
    (OnlyBackward, "gradient"), (StraightThroughAll, "gradient"), (MixesTheBatch, "batch"),
    (BatchFirstForgotten, "batch"), (SqueezesOne, "batch"), (Remembers, "stateless"),
    (CountsItsCalls, "deterministic"), (KeepsItsTable, "stateless"),
    (NoiseInEvaluation, "deterministic"), (ChangesItsInput, "input"), (ByTotalLength, "length"),
    (CountsFromTheEnd, "length"), (LosesItsState, "carries"), (LosesItsStateAt256, "carries"),
    (LosesAHead, "carries"), (StepClamps, "step"), (ScanDiffers, "step"),
    (ForgetsItsStateArgument, "step"), (Understates, "state"), (OverflowsAhead, "overflow"),
    (IgnoresItsMask, "causal"), (HashesTheFuture, "causal"),
    (ByTotalLengthInBfloat16, "length"), (GivesItsBuffer, "stateless"),
    (KeepsItsFirstLength, "stateless"), (OpensAfterCalls, "stateless"),
    (StraightThroughBorders, "gradient"), (WindowOfLargeInputs, "causal"),
    (WindowOfLargeInputs, "batch"), (BordersInTraining, "train-eval"),
    (BordersInBfloat16, "bfloat16"), (OnlyUnderAutocast, "bfloat16"),
    (MixesUnderAutocast, "batch"), (MixesInBfloat16, "batch"),
    (AddsToTheSecondOfTwo, "batch"), (OnlyInBatchesInBfloat16, "bfloat16"),
    (OnlyInMixedBatchesInBfloat16, "bfloat16"),
]  # fmt: skip
