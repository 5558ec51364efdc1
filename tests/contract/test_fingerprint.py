"""The fingerprint against values known by counting, where state and fingerprint differ."""

import pytest
import torch
from tests.contract.test_rank import Attention, Block
from torch import Tensor, nn

import ithbit
from ithbit.contract.fingerprint import fingerprint
from ithbit.contract.rank import causal_rank
from ithbit.contract.report import counted, report_text
from ithbit.models.adapters import RecurrentAdapter
from ithbit.store.probed import ProbedCell, ProbedRun

D = 4


class LongConvolution(nn.Module):
    """y = a * (a long filter over b c), as Hyena without its short filter; filters are fixed."""

    def __init__(self, width: int, longest: int = 600) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        fade = torch.exp(-torch.arange(longest) / 40)
        self.filter = nn.Parameter(torch.randn(width, longest) * fade)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.enter(x).chunk(3, -1)
        past = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        weights = torch.where(past >= 0, self.filter[:, past.clamp(min=0)], 0.0)
        return x + self.leave(a * torch.einsum("dts,bsd->btd", weights.to(x), b * c))


class Diagonal(nn.Module):
    """h = a h + b x with `size` numbers a channel, read by c, or by a map of the token."""

    def __init__(self, width: int, size: int = 3, selective: bool = False) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 0.95, size))
        self.put = nn.Parameter(torch.randn(width, size))
        self.get = nn.Linear(width, size) if selective else None
        self.c = nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor) -> Tensor:
        h, out = x.new_zeros(len(x), x.shape[2], len(self.decay)), []
        for token in x.unbind(1):
            h = h * self.decay + token[..., None] * self.put
            read = self.c if self.get is None else self.get(token)[:, None]
            out.append((h * read).sum(-1))
        return torch.stack(out, 1)


@pytest.mark.parametrize(
    ("make", "state", "seen"),
    [
        (lambda: LongConvolution(D), None, D),
        (lambda: Diagonal(D), 3 * D, D),
        (lambda: Diagonal(D, selective=True), 3 * D, 3 * D),
        (lambda: RecurrentAdapter(nn.GRU, D), D, D),
        (lambda: Attention(D, False), D * D + D, D * D + D),
        (lambda: nn.Linear(D, D), 0, 0),
    ],
)
def test_state_and_fingerprint(make, state: int | None, seen: int) -> None:
    torch.manual_seed(0)
    layer = make().double()
    found = fingerprint(layer, D, 24)
    assert found.numbers == seen
    assert causal_rank(layer, D, 24).state == state


def test_softmax_has_no_fingerprint_of_fixed_size() -> None:
    torch.manual_seed(0)
    found = fingerprint(Attention(D, True).double(), D, 24)
    assert found.numbers is None
    assert found.ranks[1] > found.ranks[0]
    assert "not seen to settle" in found.sentence()


def test_a_faded_fingerprint_is_a_lower_bound() -> None:
    torch.manual_seed(0)
    found = fingerprint(Block("mamba2", 6, d_state=4).double(), 6, 32)
    assert found.settled or "at least" in found.sentence()
    assert max(found.ranks) <= 6 * 4 + 2 * 6


def test_the_report_has_both_and_what_follows() -> None:
    report = ithbit.probe(LongConvolution, width=D, rank_n=12, train=False, device="cpu")
    text = " ".join(report_text(report).split())
    assert report.rank.state is None
    assert report.bounds == ()
    assert f"one later output sees {D} numbers of the past" in text
    assert "no constant number of such layers solves RHI at every n" in text
    data = report.to_json()["fingerprint"]
    assert (data["numbers"], data["sentence"]) == (D, report.fingerprint.sentence())


class ForgetsAtBorders(nn.Module):
    """A running sum that starts again after every sixteenth token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = [part.cumsum(1) for part in self.enter(x).split(16, 1)]
        return torch.cat(parts, 1)


def test_nothing_follows_where_state_is_lost() -> None:
    report = ithbit.probe(ForgetsAtBorders, width=D, rank_n=12, train=False, device="cpu")
    assert report.rank.state is None
    assert report.fingerprint is None
    assert report.bounds == ()
    assert "not all of the past is carried on" in " ".join(report_text(report).split())


class SinglePrecisionInside(nn.Module):
    """Takes float64, and rounds one factor to float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru, self.gate = RecurrentAdapter(nn.GRU, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x).float().to(x.dtype) + self.gate(x)


def test_casts_inside_do_not_throw_the_rank_away() -> None:
    report = ithbit.probe(SinglePrecisionInside, width=D, rank_n=12, train=False, device="cpu")
    assert report.rank.fault is None
    assert report.rank.dtype == "float32"
    assert report.rank.state == D


def test_unfinished_runs_are_not_counted_as_failures() -> None:
    def run(stopped_by, accuracy):
        cell = ProbedCell("rhi", 8, 1, 4)
        first = 3 if accuracy == 1.0 else None
        return ProbedRun("mine", cell, 0, 5, stopped_by, accuracy, first, 9, 1.0, None)

    runs = [run("solved", 1.0), run("time", 0.9), run("epochs", 0.7), run("time", 1.0)]
    assert str(counted(runs)) == "2/3 +1"
