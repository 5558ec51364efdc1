"""Layers that keep the contract, of every kind people use, computed in several ways. Each is made
from a width."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _heads(x: Tensor, heads: int = 2) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # batch head token dim


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Softmax attention with scores written out; others change one thing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.leave = nn.Linear(width, width)

    def mask(self, n: int, x: Tensor) -> Tensor:
        return torch.ones(n, n, dtype=torch.bool, device=x.device).tril()

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(q.shape[-1])

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        scores = self.scores(q, k).masked_fill(~self.mask(x.shape[1], x), -torch.inf)
        return scores.softmax(-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(_heads, self.qkv(x).chunk(3, -1))
        return self.leave(_joined(self.mixed(q, k, v, x)))


class Sdpa(Attention):
    def mixed(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class SdpaMask(Attention):
    def mixed(self, q, k, v, x):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x.shape[1], x))


class LargeNegativeMask(Attention):
    """Adds the least finite number, as many libraries do."""

    def mixed(self, q, k, v, x):
        added = torch.zeros_like(self.mask(x.shape[1], x), dtype=q.dtype)
        added = added.masked_fill(~self.mask(x.shape[1], x), torch.finfo(q.dtype).min)
        return (self.scores(q, k) + added).softmax(-1) @ v


class InBfloat16(Attention):
    """Everything between the linear maps is in bfloat16."""

    def mixed(self, q, k, v, x):
        q, k, v = (each.bfloat16() for each in (8 * q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).to(x.dtype)


class MinusTenThousand(Attention):
    """Adds -1e4, as older libraries do."""

    def mixed(self, q, k, v, x):
        return (self.scores(q, k) - 1e4 * (~self.mask(x.shape[1], x)).to(x)).softmax(-1) @ v


class SlidingWindow(Attention):
    def mask(self, n, x):
        return super().mask(n, x) & torch.ones(n, n, dtype=torch.bool).triu(-7)


class WindowByUnfold(Attention):
    """The last eight tokens, gathered."""

    def mixed(self, q, k, v, x):
        k, v = (F.pad(each, (0, 0, 7, 0)).unfold(2, 8, 1) for each in (k, v))  # … token dim place
        scores = (q.unsqueeze(-2) @ k).squeeze(-2)
        place = torch.arange(8) + torch.arange(x.shape[1])[:, None] >= 7
        return (scores.masked_fill(~place, -torch.inf).softmax(-1).unsqueeze(-2) @ v.mT).squeeze(-2)


class AttentionSinks(Attention):
    """A window, and the first four tokens."""

    def mask(self, n, x):
        near = torch.ones(n, n, dtype=torch.bool).triu(-15)
        near[:, :4] = True
        return super().mask(n, x) & near


class Alibi(Attention):
    def scores(self, q, k):
        n = q.shape[2]
        away = (torch.arange(n)[:, None] - torch.arange(n)).clamp(min=0)
        slopes = torch.tensor([0.5, 0.1])[:, None, None]
        return super().scores(q, k) - (slopes * away).to(q)


def rotated(x: Tensor) -> Tensor:
    n, d = x.shape[-2:]
    angles = torch.arange(n).double()[:, None] * 100.0 ** (-torch.arange(0, d, 2).double() / d)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class Rotary(Attention):
    def scores(self, q, k):
        return super().scores(rotated(q), rotated(k))


class RotaryTable(Attention):
    """Keeps its angles for the next call, and makes more when it needs them."""

    def __init__(self, width):
        super().__init__(width)
        self.table = torch.empty(0)

    def scores(self, q, k):
        n = q.shape[2]
        if len(self.table) < n or self.table.dtype != q.dtype:
            self.table = torch.arange(2 * n).to(q)[:, None] * torch.tensor(
                [1.0, 0.1, 0.01, 0.001]
            ).to(q)
        cos, sin = self.table[:n].cos(), self.table[:n].sin()

        def turn(x: Tensor) -> Tensor:
            one, two = x[..., :4], x[..., 4:]
            return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

        return super().scores(turn(q), turn(k))


class SharedKeys(nn.Module):
    """Multi-query attention: one key and value for all heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, width // 2 * 2)

    def forward(self, x):
        k, v = (each.unsqueeze(1) for each in self.kv(x).chunk(2, -1))
        out = F.scaled_dot_product_attention(
            _heads(self.q(x)), k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1), is_causal=True
        )
        return _joined(out)


class OnlineSoftmax(Attention):
    """Blocks of sixteen keys with a running maximum, as flash attention does."""

    def mixed(self, q, k, v, x):
        n = x.shape[1]
        top = torch.full_like(q[..., :1], -torch.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        seen = self.mask(n, x)
        for start in range(0, n, 16):
            part = slice(start, start + 16)
            scores = self.scores(q, k[:, :, part]).masked_fill(~seen[:, part], -torch.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            weight, old = (scores - new).exp(), (top - new).exp()
            total, out = (
                total * old + weight.sum(-1, keepdim=True),
                out * old + weight @ v[:, :, part],
            )
            top = new
        return out / total


class Positive(Attention):
    """Linear attention with ELU + 1, as a masked product."""

    def mixed(self, q, k, v, x):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        weight = (q @ k.mT).tril()
        return weight @ v / (weight.sum(-1, keepdim=True) + 1e-6)


class LinearCumsum(Positive):
    def mixed(self, q, k, v, x):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        total = (q * k.cumsum(2)).sum(-1, keepdim=True)
        return (q.unsqueeze(-2) @ state).squeeze(-2) / (total + 1e-6)


class LinearChunked(Positive):
    """Chunks of sixteen, padded: a state across, a masked product within."""

    size = 16

    def mixed(self, q, k, v, x):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        n, size = x.shape[1], self.size
        q, k, v = (F.pad(each, (0, 0, 0, -n % size)).unflatten(2, (-1, size)) for each in (q, k, v))
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        state = (k.mT @ v).cumsum(2)
        state = F.pad(state, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        out = ((q @ k.mT).tril() @ v + q @ state).flatten(2, 3)[:, :, :n]
        return out[..., :-1] / (out[..., -1:] + 1e-6)


class LinearScan(Positive):
    def mixed(self, q, k, v, x):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state, outs = torch.zeros_like(k[:, :, 0].unsqueeze(-1) * v[:, :, 0].unsqueeze(-2)), []
        for t in range(x.shape[1]):
            state = state + k[:, :, t].unsqueeze(-1) * v[:, :, t].unsqueeze(-2)
            outs.append((q[:, :, t].unsqueeze(-2) @ state).squeeze(-2))
        return torch.stack(outs, 2)


class LinearBySubtraction(Positive):
    """The sum of all chunks minus those that follow: other bits, but causal."""

    def mixed(self, q, k, v, x):
        q, k = torch.sigmoid(q), torch.sigmoid(k)
        each = k.unsqueeze(-1) * v.unsqueeze(-2)
        after = each.flip(2).cumsum(2).flip(2) - each
        state = each.sum(2, keepdim=True) - after
        return (q.unsqueeze(-2) @ state).squeeze(-2) / x.shape[1] ** 0


class Retention(Attention):
    """A fixed decay for each head."""

    def mixed(self, q, k, v, x):
        n = x.shape[1]
        away = (torch.arange(n)[:, None] - torch.arange(n)).to(x)
        decay = torch.tensor([0.9, 0.99]).to(x)[:, None, None] ** away.clamp(min=0)
        return ((q @ k.mT) * decay.tril()) @ v


class DeltaRule(Attention):
    def mixed(self, q, k, v, x):
        k = F.normalize(k, dim=-1)
        state, outs = torch.zeros_like(k[:, :, 0].unsqueeze(-1) * v[:, :, 0].unsqueeze(-2)), []
        for t in range(x.shape[1]):
            key = k[:, :, t].unsqueeze(-1)
            old = (state.mT @ key).squeeze(-1)
            state = state + 0.5 * key * (v[:, :, t] - old).unsqueeze(-2)
            outs.append((q[:, :, t].unsqueeze(-2) @ state).squeeze(-2))
        return torch.stack(outs, 2)


class SigmoidAttention(Attention):
    def mixed(self, q, k, v, x):
        return (self.scores(q, k).sigmoid() * self.mask(x.shape[1], x).to(x)) @ v


class TopKeys(Attention):
    """Each token looks at the three best keys so far."""

    def mixed(self, q, k, v, x):
        scores = self.scores(q, k).masked_fill(~self.mask(x.shape[1], x), -torch.inf)
        least = scores.topk(min(3, scores.shape[-1]), -1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v


class Convolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 4, groups=width)

    def forward(self, x):
        return F.silu(self.conv(F.pad(x.mT, (3, 0))).mT)


class ConvolutionCut(nn.Module):
    """Padded on both sides, and the end cut off, as in Mamba."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 4, groups=width, padding=3)

    def forward(self, x):
        return self.conv(x.mT)[..., : x.shape[1]].mT


class Dilated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**k) for k in range(6))

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            x = x + layer(F.pad(x.mT, (2**k, 0))).mT.tanh()
        return x


class FourierConvolution(nn.Module):
    """As long as the input, by Fourier transforms padded to twice the length."""

    inner = torch.float64

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 3, width))

    def forward(self, x):
        n, dtype = x.shape[1], x.dtype
        x = x.to(min(self.inner, torch.float64, key=lambda d: torch.finfo(d).bits))
        time = torch.arange(n).to(x)[:, None]
        kernel = torch.exp(-self.decay.to(x).abs() * time / 20) * torch.cos(time)
        product = torch.fft.rfft(x, 2 * n, dim=1) * torch.fft.rfft(kernel, 2 * n, dim=0)
        return torch.fft.irfft(product, 2 * n, dim=1)[:, :n].to(dtype)


class FourierInFloat32(FourierConvolution):
    inner = torch.float32


class FourierInSteps(FourierInFloat32):
    """Rounded to steps: now and then, the rounding of float32 moves a number to the next one."""

    def forward(self, x):
        return (super().forward(x) * 127).round() / 127


class ComplexRecurrence(nn.Module):
    """Complex weights, which a cast to a real dtype would halve."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.polar(torch.full((width,), 0.9), 6 * torch.rand(width)))
        self.leave = nn.Parameter(torch.randn(width, dtype=torch.complex64))

    def forward(self, x):
        state, outs = torch.zeros_like(x[:, 0]), []
        for each in x.unbind(1):
            state = self.decay * state + each
            outs.append((state * self.leave).real.to(x.dtype))
        return torch.stack(outs, 1)


class RollingSum(nn.Module):
    """A window of sums by the difference of two cumulative sums."""

    def forward(self, x):
        total = x.cumsum(1)
        return total - F.pad(total, (0, 0, 8, 0))[:, : x.shape[1]]


class Gru(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
        return self.cell(x)[0]


class LstmTuple(nn.Module):
    """Returns its state too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTM(width, width, num_layers=2, batch_first=True)

    def forward(self, x, state=None):
        return self.cell(x, state)


class WithDropout(Attention):
    def forward(self, x):
        return F.dropout(super().forward(F.dropout(x, 0.1, self.training)), 0.2, self.training)


class SelectiveScan(nn.Module):
    """A state-space layer with inputs for its step size, read token by token; it can step."""

    def __init__(self, width: int, state: int = 4) -> None:
        super().__init__()
        self.state_size = width * state
        self.a = nn.Parameter(torch.linspace(-1, 1, state).repeat(width, 1))
        self.dt, self.bc = nn.Linear(width, width), nn.Linear(width, 2 * state)

    def coefficients(self, x):
        dt = F.softplus(self.dt(x)).unsqueeze(-1)
        b, c = self.bc(x).unsqueeze(-2).chunk(2, -1)
        return (-dt * self.a.exp()).exp(), dt * b * x.unsqueeze(-1), c

    def step(self, x, state):
        a, u, c = self.coefficients(x)
        state = u if state is None else a * state + u
        return (state * c).sum(-1), state

    def forward(self, x):
        state, outs = None, []
        for each in x.unbind(1):
            y, state = self.step(each, state)
            outs.append(y)
        return torch.stack(outs, 1)


class SelectiveProduct(SelectiveScan):
    """The same as one masked product over pairs of tokens."""

    def forward(self, x):
        a, u, c = self.coefficients(x)
        total = a.log().cumsum(1)
        between = total[:, :, None] - total[:, None]  # batch to from …
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()[:, :, None, None]
        weight = between.masked_fill(~seen, -torch.inf).exp()
        return torch.einsum("btsdk,bsdk,btdk->btd", weight, u, c.expand_as(u))


class SelectiveChunks(SelectiveScan):
    """The same in chunks of eight, with a state between them."""

    def forward(self, x):
        a, u, c = self.coefficients(x)
        state, outs = torch.zeros_like(u[:, 0]), []
        for start in range(0, x.shape[1], 8):
            part = slice(start, start + 8)
            total = a[:, part].log().cumsum(1)
            n = total.shape[1]
            seen = torch.ones(n, n, dtype=torch.bool).tril()[:, :, None, None]
            weight = (total[:, :, None] - total[:, None]).masked_fill(~seen, -torch.inf).exp()
            states = (
                torch.einsum("btsdk,bsdk->btdk", weight, u[:, part]) + total.exp() * state[:, None]
            )
            outs.append((states * c[:, part]).sum(-1))
            state = states[:, -1]
        return torch.cat(outs, 1)


class DoublingScan(nn.Module):
    """h_t = a_t h_{t-1} + u_t by doubling (Hillis and Steele)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, 2 * width)

    def forward(self, x):
        gate, u = self.enter(x).chunk(2, -1)
        a, step = gate.sigmoid(), 1
        while step < x.shape[1]:
            before = F.pad(u, (0, 0, step, 0))[:, : x.shape[1]]
            u = u + a * before
            a = a * F.pad(a, (0, 0, step, 0), value=1.0)[:, : x.shape[1]]
            step *= 2
        return u


class LogScan(nn.Module):
    """A positive recurrence in logarithms (minGRU)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, 2 * width)

    def forward(self, x):
        gate, value = self.enter(x).chunk(2, -1)
        keep = (-F.softplus(gate)).cumsum(1)
        return ((-F.softplus(-gate) + F.logsigmoid(value) - keep).logcumsumexp(1) + keep).exp()


class Stabilised(nn.Module):
    """exp with the largest key over the whole sequence taken off: cancels, up to rounding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kv = nn.Linear(width, 2 * width)

    def forward(self, x):
        k, v = self.kv(x).chunk(2, -1)
        weight = (k.tanh() - k.tanh().amax(1, keepdim=True)).exp()
        return (weight * v).cumsum(1) / weight.cumsum(1)


class TokenShift(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(width))
        self.key, self.value = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        before = F.pad(x, (0, 0, 1, -1))
        return self.value(self.key(torch.lerp(before, x, self.mix)).relu().square())


class Norms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.rms = nn.LayerNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        return self.rms(self.norm(x).cumsum(1))


class Mixture(nn.Module):
    """Each token goes to its two best experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.route = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        weight, chosen = self.route(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            out = out + (weight * (chosen == k)).sum(-1, keepdim=True) * expert(x)
        return out


class MixtureGathered(Mixture):
    """The same, with tokens gathered by expert: other shapes for other inputs."""

    def forward(self, x):
        weight, chosen = self.route(x).softmax(-1).topk(2, -1)
        flat, out = x.flatten(0, 1), torch.zeros_like(x).flatten(0, 1)
        for k, expert in enumerate(self.experts):
            rows, place = (chosen.flatten(0, 1) == k).nonzero(as_tuple=True)
            out.index_add_(0, rows, expert(flat[rows]) * weight.flatten(0, 1)[rows, place, None])
        return out.view_as(x)


class RunningMean(nn.Module):
    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1).to(x)[:, None]


class RunningNorm(nn.Module):
    """Normalised over time, but only over tokens so far."""

    def forward(self, x):
        count = torch.arange(1, x.shape[1] + 1).to(x)[:, None]
        mean = x.cumsum(1) / count
        var = (x * x).cumsum(1) / count - mean**2
        return (x - mean) / (var.clamp(min=0) + 1e-2).sqrt()


class RunningMaximum(nn.Module):
    def forward(self, x):
        return x.cummax(1).values


class LearnedPositions(nn.Module):
    """Made for a number of tokens: refuses more."""

    def __init__(self, width: int, n_tokens: int) -> None:
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(n_tokens, width))

    def forward(self, x):
        return (x + self.table[: x.shape[1]]).cumsum(1)


class TokenMixing(nn.Module):
    """A triangular matrix over tokens: made for exactly that many."""

    def __init__(self, width: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n, n) / n**0.5)

    def forward(self, x):
        return self.weight.tril() @ x


class MultipleOfSixteen(nn.Module):
    """Refuses other lengths, as many kernels do."""

    def forward(self, x):
        if x.shape[1] % 16:
            raise ValueError("the length must be a multiple of 16")
        return x.cumsum(1)


class ChunkLocal(Attention):
    """Attention within chunks of sixteen by design: nothing gets across (a warning)."""

    def mask(self, n, x):
        chunk = torch.arange(n) // 16
        return super().mask(n, x) & (chunk[:, None] == chunk)


@dataclass
class Output:
    attentions: Tensor | None
    last_hidden_state: Tensor


class GivesDataclass(Attention):
    def forward(self, x):
        return Output(None, super().forward(x))


class GivesDict(Attention):
    def forward(self, x):
        return {"loss": None, "out": super().forward(x)}


class NeedsMask(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x, attn_mask):
        return self.mha(x, x, x, attn_mask=attn_mask, need_weights=False)


class NeedsPositions(nn.Module):
    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, hidden_states, position_ids):
        return self.norm(hidden_states.cumsum(1)) * (1 + 0.01 * position_ids[..., None])


class FromConfig(nn.Module):
    """As in nanoGPT."""

    def __init__(self, config) -> None:
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.heads = config.n_head
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        ones = torch.ones(config.block_size, config.block_size)
        self.register_buffer("seen", ones.tril())
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (_heads(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT / math.sqrt(k.shape[-1])).masked_fill(self.seen[:n, :n] == 0, -torch.inf)
        return _joined(self.drop(scores.softmax(-1)) @ v)


class CumulativeProduct(nn.Module):
    def forward(self, x):
        return (0.999 + 0.001 * x.tanh()).cumprod(1) * x


class HardGate(nn.Module):
    """Signs and thresholds of what was read so far."""

    def forward(self, x):
        return torch.where(x.cumsum(1) > 0, x, -0.5 * x.sign())


class Straight(nn.Module):
    """Rounded forward, the identity's gradient backward."""

    def forward(self, x):
        y = x.cumsum(1)
        return y + ((4 * y).round() / 4 - y).detach()


class Block(nn.Module):
    """A block as it stands in models: norms, attention, a gated network, residuals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.RMSNorm(width), nn.LayerNorm(width)
        self.mix, self.gate = Rotary(width), nn.Linear(width, 4 * width)
        self.leave = nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.mix(self.one(x))
        a, b = self.gate(self.two(x)).chunk(2, -1)
        return x + self.leave(F.silu(a) * b)


class Two(nn.Module):
    """Two layers of different kinds, one after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(Block(width), SelectiveScan(width), Convolution(width))

    def forward(self, x):
        return self.layers(x)


class FourierInEighths(nn.Module):
    """A convolution by Fourier transform, rounded to steps that hide its rounding in float64 alone:
    in bfloat16 many numbers lie between two steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.map, self.decay = nn.Linear(width, width), nn.Parameter(torch.randn(width))

    def convolved(self, x):
        n, wide = x.shape[1], x if x.dtype == torch.float64 else x.float()
        kernel = (-torch.arange(n)[:, None] * self.decay.sigmoid().to(wide)).exp()
        both = torch.fft.rfft(wide, n=2 * n, dim=1) * torch.fft.rfft(kernel, n=2 * n, dim=0)
        return torch.fft.irfft(both, n=2 * n, dim=1)[:, :n]

    def forward(self, x):
        return (8 * self.convolved(self.map(x))).round().to(x.dtype) / 8


class FourierSign(FourierInEighths):
    def forward(self, x):
        return self.map(self.convolved(x).sign().to(x.dtype))


class WindowInBlocks(nn.Module):
    """Attention to the own block of 16 and the one before: the past is lost, but nowhere all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.maps = nn.Linear(width, 3 * width)

    def forward(self, x):
        n = x.shape[1]
        blocks = F.pad(self.maps(x), (0, 0, 0, -n % 16)).unflatten(1, (-1, 16))
        q, k, v = blocks.chunk(3, -1)
        k, v = (torch.cat([F.pad(each, (0, 0, 0, 0, 1, -1)), each], 2) for each in (k, v))
        at = torch.arange(q.shape[1] * 16).view(-1, 16)
        keys = torch.cat([at - 16, at], 1)
        mask = (keys[:, None] <= at[..., None]) & (keys[:, None] >= 0)
        weights = (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1)
        return (weights @ v).flatten(1, 2)[:, :n]


def encoder(width: int) -> nn.Module:
    """PyTorch's own: causal with its mask."""
    return nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)


def instance(width: int) -> nn.Module:
    return nn.GRU(width, width, batch_first=True)


CORRECT = [
    Attention, Sdpa, SdpaMask, LargeNegativeMask, InBfloat16, MinusTenThousand, SlidingWindow,
    WindowByUnfold, AttentionSinks, Alibi, Rotary, RotaryTable, SharedKeys, OnlineSoftmax, Positive,
    LinearCumsum, LinearChunked, LinearScan, LinearBySubtraction, Retention, DeltaRule,
    SigmoidAttention, TopKeys,
    Convolution, ConvolutionCut, Dilated, FourierConvolution, FourierInFloat32, FourierInSteps,
    FourierInEighths, FourierSign, WindowInBlocks,
    ComplexRecurrence, RollingSum, Gru,
    LstmTuple, WithDropout, SelectiveScan, SelectiveProduct, SelectiveChunks, DoublingScan, LogScan,
    Stabilised, TokenShift, Norms, Mixture, MixtureGathered, RunningMean, RunningNorm,
    RunningMaximum, LearnedPositions, TokenMixing, MultipleOfSixteen, ChunkLocal, GivesDataclass,
    GivesDict, NeedsMask, NeedsPositions, FromConfig, CumulativeProduct, HardGate, Straight, Block,
    Two, encoder, instance,
]  # fmt: skip
