"""The causal rank against values known by counting.

With d inputs a token the rank at k is min((k - 1) d, S): S = d for a GRU; d² + d for linear
attention (keys times values, and the sum of keys); d N + (v - 1) d for Mamba2 (the state, and the
window of its convolution, whose channels are functions of d inputs a token); unbounded for softmax;
and the sum over layers for a stack.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ithbit.models.registry import BLOCKS
from ithbit.models.spec import ModelSpec
from ithbit.models.stream import Sequence
from ithbit.probe.adapters import Recurrent
from ithbit.probe.layer import load_layer
from ithbit.probe.rank import causal_rank, jacobian, numerical_rank

WIDTHS = range(2, 17)
FILE = Path(__file__).with_name("bad_layers.py")
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
            return Recurrent(nn.GRU, d), 7, d
        case "two gru":
            return nn.Sequential(Recurrent(nn.GRU, d), Recurrent(nn.GRU, d)), 7, 2 * d
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
    assert found.ranks == tuple(min(k * d, state) for k in range(n))
    assert found.state == (None if state == FOREVER else state)
    assert found.fault is None


@pytest.mark.parametrize("d", [2, 3, 5])
def test_two_linear_layers(d: int) -> None:
    torch.manual_seed(d)
    layer = nn.Sequential(Attention(d, False), Attention(d, False)).double()
    n = 2 * d + 6
    assert causal_rank(layer, d, n).ranks == tuple(min(k * d, 2 * (d * d + d)) for k in range(n))


def test_layer_norm_hides_one_direction_a_token() -> None:
    # The trained linear block with two heads keeps d (d/2 + 1) numbers and sees d - 1 a token.
    found = causal_rank(Block("linear-causal", 8).double(), 8, 14)
    assert found.ranks == tuple(min(7 * k, 8 * 5) for k in range(14))


@pytest.mark.slow
def test_mamba2_at_the_papers_size() -> None:
    found = causal_rank(Block("mamba2", 16, d_state=16).double(), 16, 32)
    assert found.ranks == tuple(min(16 * k, 16 * 16 + 2 * 16) for k in range(32))


def test_a_state_of_three() -> None:
    module = load_layer(f"{FILE}:StateOfThree").build(5).double()
    found = causal_rank(module, 5, 8)
    assert found.state == 3
    assert found.sentence() == "flat at 3 from k = 2 on, as with a state of that many numbers"


def test_nothing_kept_and_nothing_forgotten() -> None:
    pointwise = nn.Linear(3, 3).double()
    assert causal_rank(pointwise, 3, 6).sentence().startswith("0 throughout")
    blind = load_layer(f"{FILE}:Blind").build(3).double()
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
    found = causal_rank(load_layer(f"{FILE}:{name}").build(width).double(), width, 8)
    assert found.fault == fault
    if fault is not None:
        assert found.state is None
        assert found.sentence() == f"no measure of this layer: {fault}; nothing follows from it"


@pytest.mark.parametrize("steps", [1.0, 100.0, 10_000.0])
def test_steps_of_any_size_are_seen_beside_a_smooth_part(steps: float) -> None:
    class Rounded(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (steps * x.cumsum(1)).round() / steps

    torch.manual_seed(0)
    assert causal_rank(Rounded(nn.GRU, 3).double(), 3, 6).fault == JUMP


def test_float32_is_checked_less_sharply() -> None:
    torch.manual_seed(0)
    assert causal_rank(Recurrent(nn.GRU, 3), 3, 6).fault is None
    assert causal_rank(load_layer(f"{FILE}:Detaches").build(3), 3, 6).fault == ZERO


def test_weights_of_zero_do_not_hide_the_rank() -> None:
    layer = Recurrent(nn.GRU, 3).double()
    for value in layer.parameters():
        nn.init.zeros_(value)
    assert causal_rank(layer, 3, 6).state == 3


def test_the_jacobian_is_autograds() -> None:
    torch.manual_seed(0)
    layer = Attention(2, True).double()
    x = torch.randn(4, 2, dtype=torch.float64)
    whole = torch.autograd.functional.jacobian(lambda x: layer(x[None])[0].flatten(), x)
    assert torch.allclose(jacobian(layer, x), whole.flatten(1), atol=1e-14)


def test_scaling_does_not_change_a_rank() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(s, dtype=torch.float64, generator=generator) for s in ((20, 5), (5, 9))
    )
    rows, columns = 10.0 ** -torch.arange(20.0).double(), 10.0 ** -(2 * torch.arange(9.0).double())
    assert numerical_rank(left @ right) == 5
    assert numerical_rank(rows[:, None] * (left @ right) * columns) == 5
    assert numerical_rank(torch.zeros(3, 2)) == 0
