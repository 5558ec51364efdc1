"""Layers whose state is known by counting, many of them computing one function in several ways.

`KNOWN` gives a factory and the state at width d for each; `GROWING` is a state without a bound.
`FADING` are those whose singular values may fade into the noise, so that nothing can be said.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROWING = 10**9
TAPS = 4


def _shifted(x: Tensor, by: int = 1) -> Tensor:
    """x of `by` tokens ago, 0 before the first."""
    return F.pad(x, (0, 0, by, 0))[:, : x.shape[1]]


def _fft_conv(x: Tensor, kernel: Tensor) -> Tensor:
    """Causal convolution of (batch, token, channel) with (token, channel) by FFT."""
    size = 2 * max(x.shape[1], kernel.shape[0])
    spectrum = torch.fft.rfft(x, size, dim=1) * torch.fft.rfft(kernel, size, dim=0)
    return torch.fft.irfft(spectrum, size, dim=1)[:, : x.shape[1]]


def _scan(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a_t h_{t-1} + b_t by doubling."""
    step = 1
    while step < a.shape[1]:
        ones = torch.ones_like(a[:, :step])
        before = torch.cat([ones, a[:, :-step]], 1)
        b = b + a * F.pad(b, (0, 0, step, 0))[:, : b.shape[1]]
        a = a * before
        step *= 2
    return b


def _loop(a: Tensor, b: Tensor) -> Tensor:
    h, out = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        out.append(h)
    return torch.stack(out, 1)


def _undone(a: Tensor, b: Tensor) -> Tensor:
    """The same by a sum of what is divided by the product of all decays, which is undone."""
    product = a.log().cumsum(1).exp()
    return product * (b / product).cumsum(1)


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Constant(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.value + 0 * x


class SumUndone(nn.Module):
    """Each token alone, by sums over all and their differences."""

    def __init__(self, width: int, logs: bool) -> None:
        super().__init__()
        self.map, self.logs = nn.Linear(width, width), logs

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x).sigmoid() + 0.5
        if self.logs:
            total = y.log().cumsum(1).exp()
            return total / F.pad(total, (0, 0, 1, 0), value=1.0)[:, :-1]
        total = y.cumsum(1)
        return (total - _shifted(total)).tanh()


class Convolution(nn.Module):
    """Four taps a channel between two linear maps: three tokens are kept."""

    def __init__(self, width: int, how: str, lag: int = 1) -> None:
        super().__init__()
        self.enter, self.how, self.lag = nn.Linear(width, width), how, lag
        self.kernel = nn.Parameter(torch.randn(TAPS, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x)
        if self.how == "fft":
            taps = torch.zeros(TAPS * self.lag, x.shape[2], dtype=x.dtype)
            taps[:: self.lag] = self.kernel
            return _fft_conv(y, taps)
        if self.how == "sum":
            return sum(self.kernel[j] * _shifted(y, j * self.lag) for j in range(TAPS))
        weight = self.kernel.flip(0).mT[:, None]
        padded = F.pad(y.mT, ((TAPS - 1) * self.lag, 0))
        return F.conv1d(padded, weight, groups=x.shape[2], dilation=self.lag).mT


class Gated(nn.Module):
    """h_t = a_t h_{t-1} + (1 - a_t) u_t with gates of the input, behind a convolution if asked."""

    def __init__(self, width: int, how: Callable[[Tensor, Tensor], Tensor], conv: str = "") -> None:
        super().__init__()
        self.conv = Convolution(width, conv) if conv else nn.Identity()
        self.gate, self.enter, self.how = nn.Linear(width, width), nn.Linear(width, width), how

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        a = self.gate(y).sigmoid()
        return self.how(a, (1 - a) * self.enter(y))


class Average(nn.Module):
    """h_t = a h_{t-1} + u_t with a decay a channel."""

    def __init__(self, width: int, how: str, least: float = 0.5) -> None:
        super().__init__()
        self.enter, self.how = nn.Linear(width, width), how
        self.decay = nn.Parameter(torch.linspace(least, 0.95, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.enter(x)
        if self.how == "loop":
            return _loop(self.decay.expand_as(y), y)
        if self.how == "scan":
            return _scan(self.decay.expand_as(y), y)
        steps = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        kernel = self.decay**steps
        if self.how == "fft":
            return _fft_conv(y, kernel)
        chunk, h, out = 8, torch.zeros_like(y[:, 0]), []
        for part in y.split(chunk, 1):
            size = part.shape[1]
            inside = _fft_conv(part, kernel[:size]) + h[:, None] * self.decay * kernel[:size]
            h = inside[:, -1]
            out.append(inside)
        return torch.cat(out, 1)


class Diagonal(nn.Module):
    """A complex diagonal state space with `modes` modes for all channels together."""

    def __init__(self, width: int, modes: int, how: str) -> None:
        super().__init__()
        self.radius = nn.Parameter(torch.linspace(0.6, 0.95, modes))
        self.angle = nn.Parameter(torch.linspace(0.2, 2.8, modes))
        self.enter = nn.Parameter(torch.randn(width, modes, 2) / width**0.5)
        self.leave, self.how = nn.Parameter(torch.randn(modes, width, 2) / modes**0.5), how

    def forward(self, x: Tensor) -> Tensor:
        pole = torch.polar(self.radius, self.angle)
        u = x.to(pole.dtype) @ torch.view_as_complex(self.enter)
        if self.how == "loop":
            h = _loop(pole.expand_as(u), u)
        elif self.how == "scan":
            h = _scan(pole.expand_as(u), u)
        else:
            steps = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
            size = 2 * x.shape[1]
            kernel = torch.fft.fft(pole**steps, size, dim=0)
            h = torch.fft.ifft(torch.fft.fft(u, size, dim=1) * kernel, dim=1)[:, : x.shape[1]]
        return (h @ torch.view_as_complex(self.leave)).real


class ChannelStates(nn.Module):
    """A state space of its own for every channel, `modes` complex modes each (S4D)."""

    def __init__(self, width: int, modes: int, how: str, step: float = 0.1) -> None:
        super().__init__()
        self.rate, self.how = nn.Parameter(torch.full((width, modes), 0.5)), how
        self.frequency = nn.Parameter(torch.pi * (torch.arange(modes) + 0.5).repeat(width, 1))
        self.step = nn.Parameter(step * torch.logspace(-1, 0, width)[:, None])
        self.leave = nn.Parameter(torch.randn(width, modes, 2))

    def forward(self, x: Tensor) -> Tensor:
        pole = torch.exp(self.step * torch.complex(-self.rate, self.frequency))
        out = torch.view_as_complex(self.leave)
        if self.how == "fft":
            steps = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None]
            return _fft_conv(x, (out * pole**steps).sum(-1).real)
        h, found = torch.zeros_like(x[:, 0, :, None] * pole), []
        for t in range(x.shape[1]):
            h = pole * h + x[:, t, :, None]
            found.append((h * out).sum(-1).real)
        return torch.stack(found, 1)


class Decays(nn.Module):
    """Real decays in every channel, side by side, each with a weight."""

    def __init__(self, width: int, decays: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.05, 0.95, decays).repeat(width, 1))
        self.leave = nn.Parameter(torch.randn(width, decays))

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None]
        return _fft_conv(x, (self.leave * self.decay**steps).sum(-1))


class Delta(nn.Module):
    """S_t = S_{t-1} + b_t (v_t - S_{t-1} k_t) k_t, read by a query: width² numbers."""

    def __init__(self, width: int, how: str) -> None:
        super().__init__()
        self.qkv, self.gate, self.how = nn.Linear(width, 3 * width), nn.Linear(width, 1), how

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        k, beta = F.normalize(k, dim=-1), self.gate(x).sigmoid()
        if self.how == "chunked":
            return self._chunked(q, k, v, beta)
        state, out = torch.zeros_like(k[:, 0, :, None] * v[:, 0, None]), []
        for t in range(x.shape[1]):
            old = torch.einsum("bkv,bk->bv", state, k[:, t])
            state = state + k[:, t, :, None] * (beta[:, t] * (v[:, t] - old))[:, None]
            out.append(torch.einsum("bkv,bk->bv", state, q[:, t]))
        return torch.stack(out, 1)

    def _chunked(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
        state, out = torch.zeros_like(k[:, 0, :, None] * v[:, 0, None]), []
        for here in zip(*(t.split(8, 1) for t in (q, k, v, beta)), strict=True):
            q, k, v, beta = here
            system = torch.eye(k.shape[1], dtype=k.dtype) + (beta * (k @ k.mT)).tril(-1)
            new = torch.linalg.solve_triangular(system, beta * (v - k @ state), upper=False)
            out.append(q @ state + (q @ k.mT).tril() @ new)
            state = state + k.mT @ new
        return torch.cat(out, 1)


class Linear(nn.Module):
    """Linear attention, with or without the sum of weights below it, decaying or not."""

    def __init__(self, width: int, how: str, normalised: bool, decay: float = 1.0) -> None:
        super().__init__()
        self.qkv, self.how = nn.Linear(width, 3 * width), how
        self.normalised, self.decay = normalised, decay

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if self.normalised:
            v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        out = self._read(q, k, v)
        return out[..., :-1] / out[..., -1:] if self.normalised else out

    def _read(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.how == "all pairs":
            t = torch.arange(q.shape[1], dtype=q.dtype)
            fade = self.decay ** (t[:, None] - t).clamp(min=0)
            return ((q @ k.mT) * fade).tril() @ v
        if self.how == "sums":
            return ((k[..., None] * v[:, :, None]).cumsum(1) * q[..., None]).sum(2)
        state, out = torch.zeros_like(k[:, 0, :, None] * v[:, 0, None]), []
        for t in range(q.shape[1]):
            state = self.decay * state + k[:, t, :, None] * v[:, t, None]
            out.append(torch.einsum("bkv,bk->bv", state, q[:, t]))
        return torch.stack(out, 1)


class Softmax(nn.Module):
    """Softmax attention to all tokens so far or to a window, keys of one length or not."""

    def __init__(self, width: int, window: int = 0, normalised: bool = False) -> None:
        super().__init__()
        self.qkv, self.window, self.normalised = nn.Linear(width, 3 * width), window, normalised

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.normalised:
            q, k = F.normalize(q, dim=-1), 4 * F.normalize(k, dim=-1)
        ones = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        seen = ones.tril() & (ones.triu(1 - self.window) if self.window else ones)
        return (q @ k.mT / 2).masked_fill(~seen, -torch.inf).softmax(-1) @ v


class WindowByDifference(nn.Module):
    """The mean of the last four values, weighted by exp of a key: sums and their differences."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.kv = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).chunk(2, -1)
        top, below = (k.exp() * v).cumsum(1), k.exp().cumsum(1)
        return (top - _shifted(top, TAPS)) / (below - _shifted(below, TAPS))


class Rwkv(nn.Module):
    """A weighted mean with a decay and a bonus for the present token: two numbers a channel."""

    def __init__(self, width: int, shift: bool) -> None:
        super().__init__()
        self.kv, self.shift = nn.Linear(width, 2 * width), shift
        self.decay = nn.Parameter(torch.linspace(0.6, 0.95, width))
        self.mix = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.mix * _shifted(x) if self.shift else x
        k, v = self.kv(y).chunk(2, -1)
        top = bottom = torch.zeros_like(k[:, 0])
        out = []
        for t in range(x.shape[1]):
            weight = k[:, t].exp()
            out.append((top + 2 * weight * v[:, t]) / (bottom + 2 * weight))
            top, bottom = self.decay * top + weight * v[:, t], self.decay * bottom + weight
        return torch.stack(out, 1)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], width: int) -> None:
        super().__init__()
        self.cell = kind(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


def _mean(x: Tensor) -> Tensor:
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]


def _fft_sum(x: Tensor) -> Tensor:
    return _fft_conv(x, torch.ones_like(x[0]))


def _maker(kind: Callable[..., nn.Module], *rest: object) -> Callable[[int], nn.Module]:
    return lambda width: kind(width, *rest)


def _of(function: Callable[[Tensor], Tensor]) -> Callable[[int], nn.Module]:
    return lambda width: Function(function)


KNOWN: dict[str, tuple[Callable[[int], nn.Module], Callable[[int], int]]] = {
    "constant": (_maker(Constant), lambda d: 0),
    "each token alone": (lambda width: nn.Linear(width, width), lambda d: 0),
    "each token alone, sums undone": (_maker(SumUndone, False), lambda d: 0),
    "each token alone, products undone": (_maker(SumUndone, True), lambda d: 0),
    "sum": (_of(lambda x: x.cumsum(1)), lambda d: d),
    "sum by FFT": (_of(_fft_sum), lambda d: d),
    "mean": (_of(_mean), lambda d: d),
    "token before": (_of(_shifted), lambda d: d),
    "token nine before": (_of(lambda x: x + _shifted(x, 9).tanh()), lambda d: 9 * d),
    "convolution": (_maker(Convolution, "conv1d"), lambda d: 3 * d),
    "convolution by FFT": (_maker(Convolution, "fft"), lambda d: 3 * d),
    "convolution by sums": (_maker(Convolution, "sum"), lambda d: 3 * d),
    "dilated convolution": (_maker(Convolution, "conv1d", 3), lambda d: 9 * d),
    "dilated convolution by FFT": (_maker(Convolution, "fft", 3), lambda d: 9 * d),
    "average": (_maker(Average, "loop"), lambda d: d),
    "average by scan": (_maker(Average, "scan"), lambda d: d),
    "average by FFT": (_maker(Average, "fft"), lambda d: d),
    "average by chunks": (_maker(Average, "chunks"), lambda d: d),
    "forgetful average": (_maker(Average, "loop", 1e-3), lambda d: d),
    "gated": (_maker(Gated, _loop), lambda d: d),
    "gated by scan": (_maker(Gated, _scan), lambda d: d),
    "gated, products undone": (_maker(Gated, _undone), lambda d: d),
    "gated behind a convolution": (_maker(Gated, _loop, "conv1d"), lambda d: 4 * d),
    "gated behind a convolution, by scan": (_maker(Gated, _scan, "conv1d"), lambda d: 4 * d),
    "gated behind a convolution by FFT": (_maker(Gated, _loop, "fft"), lambda d: 4 * d),
    "gated, undone, behind FFT": (_maker(Gated, _undone, "fft"), lambda d: 4 * d),
    "complex diagonal": (_maker(Diagonal, 12, "loop"), lambda d: 24),
    "complex diagonal by scan": (_maker(Diagonal, 12, "scan"), lambda d: 24),
    "complex diagonal by FFT": (_maker(Diagonal, 12, "fft"), lambda d: 24),
    "two modes a channel": (_maker(ChannelStates, 2, "loop", 0.5), lambda d: 4 * d),
    "two modes a channel by FFT": (_maker(ChannelStates, 2, "fft", 0.5), lambda d: 4 * d),
    "eight modes a channel": (_maker(ChannelStates, 8, "loop"), lambda d: 16 * d),
    "eight modes a channel by FFT": (_maker(ChannelStates, 8, "fft"), lambda d: 16 * d),
    "fifteen decays a channel": (_maker(Decays, 15), lambda d: 15 * d),
    "delta rule": (_maker(Delta, "loop"), lambda d: d * d),
    "delta rule by chunks": (_maker(Delta, "chunked"), lambda d: d * d),
    "linear attention": (_maker(Linear, "loop", False), lambda d: d * d),
    "linear attention by all pairs": (_maker(Linear, "all pairs", False), lambda d: d * d),
    "linear attention by sums": (_maker(Linear, "sums", False), lambda d: d * d),
    "normalised linear attention": (_maker(Linear, "loop", True), lambda d: d * d + d),
    "normalised, by all pairs": (_maker(Linear, "all pairs", True), lambda d: d * d + d),
    "retention": (_maker(Linear, "loop", False, 0.7), lambda d: d * d),
    "retention by all pairs": (_maker(Linear, "all pairs", False, 0.7), lambda d: d * d),
    "softmax": (_maker(Softmax), lambda d: GROWING),
    "normalised softmax": (_maker(Softmax, 0, True), lambda d: GROWING),
    "sliding window": (_maker(Softmax, TAPS), lambda d: 3 * d),
    "normalised sliding window": (_maker(Softmax, TAPS, True), lambda d: 3 * d),
    "sliding window by differences": (_maker(WindowByDifference), lambda d: 3 * d),
    "weighted mean": (_maker(Rwkv, False), lambda d: 2 * d),
    "weighted mean of shifted tokens": (_maker(Rwkv, True), lambda d: 3 * d),
    "RNN": (_maker(lambda width: Recurrent(nn.RNN, width)), lambda d: d),
    "GRU": (_maker(lambda width: Recurrent(nn.GRU, width)), lambda d: d),
    "LSTM": (_maker(lambda width: Recurrent(nn.LSTM, width)), lambda d: 2 * d),
    "GRU behind a convolution": (
        lambda width: nn.Sequential(Convolution(width, "fft"), Recurrent(nn.GRU, width)),
        lambda d: 4 * d,
    ),
}

FADING = [name for name in KNOWN if "a channel" in name]
