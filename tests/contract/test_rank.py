"""The causal rank against values known by counting.

With d inputs a token the rank at k is min((k - 1) d, S): S = d for a GRU; d² + d for linear
attention (keys times values, and the sum of keys); d N + (v - 1) d for Mamba2 (the state, and the
window of its convolution, whose channels are functions of d inputs a token); unbounded for softmax;
and the sum over layers for a stack.
"""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from tests.support.known_layers import FADING, GROWING, KNOWN, Convolution, Delta, Gated
from tests.support.paths import BAD_LAYERS
from torch import Tensor, nn

from ithbit.contract.jacobian import Point, Spectrum, rows_of
from ithbit.contract.rank import CausalRank, causal_rank
from ithbit.models.adapters import RecurrentAdapter
from ithbit.models.classifier import BLOCKS
from ithbit.models.layer_source import load_layer
from ithbit.models.stacked import Sequence
from ithbit.spec import ModelSpec

WIDTHS = (2, 5, pytest.param(16, marks=pytest.mark.slow))
FOREVER = 10**9


class Attention(nn.Module):
    """One causal head, linear with ELU + 1 or softmax, and nothing else."""

    def __init__(self, d: int, softmax: bool) -> None:
        super().__init__()
        self.qkv, self.softmax = nn.Linear(d, 3 * d), softmax

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.softmax:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            ahead = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
            return scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v
        weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
        return weights @ v / weights.sum(-1, keepdim=True)


class Block(nn.Module):
    """A family's own block as a module."""

    def __init__(self, family: str, d: int, d_state: int = 4) -> None:
        super().__init__()
        heads = 2 if d % 2 == 0 else 1
        self.spec = ModelSpec("rhi", family, 8, d_model=d, n_heads=heads, d_state=d_state, d_ff=8)
        params = BLOCKS[family].init_block(self.spec, torch.Generator().manual_seed(0))
        self.names = {name: name.replace(".", "_") for name in params}
        for name, value in params.items():
            self.register_parameter(self.names[name], nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        params = {name: getattr(self, a).unsqueeze(0) for name, a in self.names.items()}
        stream = Sequence(x.unsqueeze(0))
        return BLOCKS[self.spec.family].block(params, self.spec, stream, False)[0]


def known(name: str, d: int) -> tuple[nn.Module, int, int]:
    """A layer, the length to look at, and its state."""
    torch.manual_seed(d)
    match name:
        case "gru":
            return RecurrentAdapter(nn.GRU, d), 7, d
        case "two gru":
            return nn.Sequential(RecurrentAdapter(nn.GRU, d), RecurrentAdapter(nn.GRU, d)), 7, 2 * d
        case "linear":
            return Attention(d, False), d + 5, d * d + d
        case "softmax":
            return Attention(d, True), 9, FOREVER
        case "two softmax":
            return nn.Sequential(Attention(d, True), Attention(d, True)), 7, FOREVER
        case "mamba2":
            return Block("mamba2", d, d_state=4), 11, 4 * d + 2 * d
    raise AssertionError(name)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("name", ["gru", "two gru", "linear", "softmax", "two softmax", "mamba2"])
def test_exact_for_known_layers(name: str, d: int) -> None:
    layer, n, state = known(name, d)
    found = causal_rank(layer.double(), d, n)
    assert found.state == (None if state == FOREVER else state)
    assert found.ranks[:n] == tuple(min(k * d, state) for k in range(n))
    assert found.fault is None


@pytest.mark.parametrize("d", [2, 3, 5])
def test_two_linear_layers(d: int) -> None:
    torch.manual_seed(d)
    layer = nn.Sequential(Attention(d, False), Attention(d, False)).double()
    n = 2 * d + 6
    found = causal_rank(layer, d, n)
    assert found.ranks == tuple(min(k * d, 2 * (d * d + d)) for k in range(found.n))


def test_layer_norm_hides_one_direction_a_token() -> None:
    # The trained linear block with two heads keeps d (d/2 + 1) numbers and sees d - 1 a token.
    found = causal_rank(Block("linear-causal", 8).double(), 8, 14)
    assert found.ranks == tuple(min(7 * k, 8 * 5) for k in range(found.n))
    assert found.state == 8 * 5


@pytest.mark.slow
@pytest.mark.parametrize("how", ["loop", "chunked"])
def test_the_delta_rule_at_width_32(how: str) -> None:
    torch.manual_seed(0)
    assert causal_rank(Delta(32, how).double(), 32, 32).state == 1024


@pytest.mark.slow
def test_mamba2_at_the_papers_size() -> None:
    found = causal_rank(Block("mamba2", 16, d_state=16).double(), 16, 32)
    assert found.ranks == tuple(min(16 * k, 16 * 16 + 2 * 16) for k in range(found.n))


def test_a_state_of_three() -> None:
    module = load_layer(f"{BAD_LAYERS}:StateOfThree").build(5).double()
    found = causal_rank(module, 5, 8)
    assert found.state == 3
    assert found.sentence() == (
        "flat at 3 from k = 2 on, as with a state of that many numbers (seen up to k = 8 and at "
        "k = 256)"
    )


def test_nothing_kept_and_nothing_forgotten() -> None:
    pointwise = nn.Linear(3, 3).double()
    assert causal_rank(pointwise, 3, 6).sentence().startswith("0 throughout")
    blind = load_layer(f"{BAD_LAYERS}:Blind").build(3).double()
    assert causal_rank(blind, 3, 6).state == 0
    torch.manual_seed(0)
    assert "nothing is forgotten" in causal_rank(Attention(3, True).double(), 3, 6).sentence()


ZERO = "earlier inputs change later outputs although the derivative is 0"
JUMP = "later outputs jump as earlier inputs move, which the derivative does not show"
OTHER = "later outputs do not change as the derivative says"


@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Rounds", ZERO),
        ("Detaches", ZERO),
        ("RoundsAPart", JUMP),
        ("StraightThrough", JUMP),
        ("Picks", JUMP),
        ("DetachesAPart", OTHER),
        ("Kinks", None),
        ("StateOfThree", None),
        ("Blind", None),
    ],
)
def test_where_the_derivative_does_not_describe_the_layer(name: str, fault: str, width) -> None:
    found = causal_rank(load_layer(f"{BAD_LAYERS}:{name}").build(width).double(), width, 8)
    assert found.fault == fault
    if fault is not None:
        assert found.state is None
        assert found.sentence() == f"no measure of this layer: {fault}; nothing follows from it"


@pytest.mark.parametrize("steps", [1.0, 100.0, 10_000.0])
def test_steps_of_any_size_are_seen_beside_a_smooth_part(steps: float) -> None:
    class Rounded(RecurrentAdapter):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (steps * x.cumsum(1)).round() / steps

    torch.manual_seed(0)
    assert causal_rank(Rounded(nn.GRU, 3).double(), 3, 6).fault == JUMP


def test_float32_is_checked_less_sharply() -> None:
    torch.manual_seed(0)
    assert causal_rank(RecurrentAdapter(nn.GRU, 3), 3, 6).fault is None
    assert causal_rank(load_layer(f"{BAD_LAYERS}:Detaches").build(3), 3, 6).fault == ZERO


def test_weights_of_zero_do_not_hide_the_rank() -> None:
    layer = RecurrentAdapter(nn.GRU, 3).double()
    for value in layer.parameters():
        nn.init.zeros_(value)
    assert causal_rank(layer, 3, 6).state == 3


def test_a_row_is_autograds() -> None:
    torch.manual_seed(0)
    layer = Attention(2, True).double()
    past, later, looks = (torch.randn(3, 2, dtype=torch.float64) for _ in range(3))
    whole = torch.autograd.functional.jacobian(
        lambda past: (layer(torch.cat([past, later])[None])[0, 3:] * looks).sum(), past
    )
    assert torch.allclose(rows_of(layer, past, later[None], looks[None])[0], whole.flatten())


@pytest.mark.parametrize("name", KNOWN)
def test_right_or_still_growing(name: str) -> None:
    factory, state = KNOWN[name]
    torch.manual_seed(0)
    found = causal_rank(factory(4).double(), 4, 12)
    assert found.fault is None
    assert max(found.ranks) <= state(4)
    if found.state is None:
        assert name in FADING or state(4) == GROWING
        assert found.sentence().startswith(("still growing at k = ", "at least ", "between "))
    else:
        assert found.state == state(4)


WIDE = ["convolution by FFT", "gated behind a convolution", "fifteen decays a channel"]
REST = [pytest.param(name, marks=pytest.mark.slow) for name in KNOWN if name not in WIDE]


@pytest.mark.parametrize("name", WIDE + REST)
def test_width_16(name: str) -> None:
    factory, state = KNOWN[name]
    torch.manual_seed(0)
    found = causal_rank(factory(16).double(), 16, 32)
    may_grow = name in FADING or state(16) == GROWING
    assert found.state == state(16) or (may_grow and found.state is None)
    assert max(found.ranks) <= state(16)


@pytest.mark.parametrize(
    "names",
    [
        [name for name in KNOWN if name.startswith(start) and "modes" not in name]
        for start in (
            "each token alone, ",
            "sum",
            "convolution",
            "dilated",
            "average",
            "gated behind",
            "complex",
            "delta",
            "linear attention",
            "retention",
        )
    ]
    + [["gated", "gated by scan", "gated, products undone"]],
)
def test_ways_to_compute_one_function_agree(names: list[str]) -> None:
    x = torch.randn(2, 20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outs = []
    for name in names:
        torch.manual_seed(0)
        outs.append(KNOWN[name][0](4).double()(x))
    assert len(outs) > 1
    if names[0].startswith("each"):  # two functions, each of one token alone
        return
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in pairwise(outs))


class BeginsAgain(nn.Module):
    """Softmax attention within every few tokens: what is kept rises and is dropped."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.inside = length, Attention(4, True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inside(part) for part in x.split(self.length, 1)], 1)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 11])
def test_a_layer_that_begins_again_is_not_called_flat(length: int) -> None:
    torch.manual_seed(0)
    found = causal_rank(BeginsAgain(length).double(), 4, 12)
    assert found.state in (None, 4 * (length - 1))
    assert max(found.ranks) <= 4 * (length - 1)


def test_a_rank_that_depends_on_the_point_is_not_called_flat() -> None:
    class Pool(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.max_pool1d(F.pad(x.mT, (2, 0)), 3, stride=1).mT

    found = causal_rank(Pool(), 8, 12)  # a state of 16, not all of which counts at any point
    assert found.state is None
    assert "no conclusion" in found.sentence()


def test_flat_for_as_long_as_it_took() -> None:
    def ranks(*values: int) -> CausalRank:
        return CausalRank(4, values, 20, "float64")

    assert ranks(0, 4, 8, 8, 8).state is None
    assert ranks(0, 4, 8, 8, 8, 8).state == 8
    assert ranks(0, 4, 8, 8, 8, 4).state is None
    assert ranks(0, 0).state == 0
    assert ranks(0, 4, 8, 8, 8).sentence() == (
        "still growing at k = 5, where it is 8, reached at k = 3 and not seen to stay for as long: "
        "no conclusion"
    )


@pytest.mark.parametrize(
    ("values", "rank", "settled"),
    [
        ((), 0, True),
        ((1.0, 0.5), 0, True),
        ((1e9, 1e8, 1.0), 2, True),
        ((1e9, 1e8, 4.0), 2, False),  # neither sure nor noise
        ((1e9, 1e2, 1.0), 2, False),  # too near
        ((1e12, 1e8, 1e4, 1.0), 3, False),  # the next gap would reach below the noise
        ((1e9, 1e8, 1e7, 10.0), 4, True),  # no more columns
    ],
)
def test_a_spectrum_that_fades_is_not_settled(
    values: tuple[float, ...], rank: int, settled: bool
) -> None:
    spectrum = Spectrum(values, 4)
    assert (spectrum.rank, spectrum.settled) == (rank, settled)


def test_the_noise_is_that_of_the_computation() -> None:
    """A part faint beside the others counts where it is computed as sharply, and only there."""

    class Faint(nn.Module):
        def __init__(self, through: float) -> None:
            super().__init__()
            self.through, self.weight = through, nn.Parameter(torch.tensor(1.3))

        def forward(self, x: Tensor) -> Tensor:
            total = x.cumsum(1)
            part = total[..., 1:] * self.weight * 1e-20
            rounded = (part + self.through * total[..., :1]) - self.through * total[..., :1]
            return torch.cat([total[..., :1], rounded], -1)

    past = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert Point(Faint(0.0), past, 0).spectrum(9, 8, 2).rank == 2


def test_one_continuation_alone_sees_less() -> None:
    torch.manual_seed(0)
    layer = KNOWN["gated behind a convolution"][0](4).double()
    past, later = torch.randn(2, 8, 4, dtype=torch.float64)
    looks = torch.randn(40, 8, 4, dtype=torch.float64)
    one = rows_of(layer, past, later.expand(40, -1, -1), looks)
    many = rows_of(layer, past, torch.randn(40, 8, 4, dtype=torch.float64), looks)
    assert [int(torch.linalg.matrix_rank(rows, rtol=1e-12)) for rows in (one, many)] == [12, 16]


def test_a_layer_without_forward_mode_is_measured() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    class Custom(Convolution):
        def forward(self, x: Tensor) -> Tensor:
            return Double.apply(super().forward(x))

    torch.manual_seed(0)
    assert causal_rank(Custom(4, "fft").double(), 4, 12).state == 12


def test_a_layer_made_for_short_inputs_is_not_taken_further() -> None:
    class Short(Attention):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] > 15:
                raise ValueError("at most 15 tokens")
            return super().forward(x)

    torch.manual_seed(0)
    found = causal_rank(Short(4, True).double(), 4, 8)
    assert (found.n, found.state) == (8, None)


def test_a_derivative_that_is_not_finite_is_no_rank_of_0() -> None:
    class Edge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (0 * x.cumsum(1)).sqrt()

    found = causal_rank(Edge(), 3, 6)
    assert found.state is None
    assert "its derivative is not finite" in found.sentence()


def test_float32_counts_no_rounding() -> None:
    for layer, state in ((Convolution(4, "fft"), 12), (Gated(4, _doubling, "conv1d"), 16)):
        found = causal_rank(layer, 4, 12)
        assert max(found.ranks) <= state
        assert found.state in (None, state)


def _doubling(a: Tensor, b: Tensor) -> Tensor:
    h, out = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        h = a[:, t] * h + b[:, t]
        out.append(h)
    return torch.stack(out, 1)


def test_a_rank_that_stays_is_not_called_growing() -> None:
    """Rounding may hide more, so nothing is concluded; but the rank does not grow."""
    ranks = (0, *[4] * 15)
    hidden = CausalRank(4, ranks, 31, "float64", settled=False)
    assert hidden.state is None
    assert hidden.sentence() == (
        "at least 4, the same from k = 2 to 16; rounding hides whether more is kept, so "
        "no conclusion"
    )
    rising = CausalRank(4, tuple(range(0, 64, 4)), 31, "float64", settled=False)
    assert rising.sentence().startswith("still growing at k = 16 as far as rounding lets us see")


def test_a_layer_that_keeps_a_tensor_is_measured() -> None:
    """It cannot be copied once it has kept one with a gradient."""
    layer = load_layer(f"{BAD_LAYERS}:KeepsItsAttention").build(4).double()
    assert "nothing is forgotten" in causal_rank(layer, 4, 6).sentence()


def test_the_layer_is_left_as_it_was() -> None:
    layer = RecurrentAdapter(nn.GRU, 3).double()
    before = [value.clone() for value in layer.parameters()]
    causal_rank(layer, 3, 6)
    assert all(map(torch.equal, before, layer.parameters()))
