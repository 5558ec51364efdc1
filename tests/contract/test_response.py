"""Real changes of the inputs against the Jacobian: kinks pass, jumps and wrong derivatives do
not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ithbit.contract.response import Response, response

TOKENS, K = 5, 3  # the first two tokens change, outputs 3 to 5 are looked at


class Of(nn.Module):
    """A function of the sum so far."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x.cumsum(1))


def seen(layer: nn.Module, start: float = 0.0, dtype: torch.dtype = torch.float64) -> Response:
    """From a sum of `start`, along a line to a sum of start + 2 and as far the other way."""
    x = torch.zeros(TOKENS, 1, dtype=dtype)
    x[0] = start
    return response(layer, x, x + 1, K)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (torch.tanh, Response(moves=True, strays=False, jumps=False)),
        (torch.zeros_like, Response(moves=False, strays=False, jumps=False)),
        (torch.relu, Response(moves=True, strays=False, jumps=False)),  # the kink is at the point
        (lambda y: (1e3 * y).tanh(), Response(moves=True, strays=False, jumps=False)),
        (lambda y: (y - 0.3).sign(), Response(moves=True, strays=False, jumps=True)),
        (lambda y: (y + 1.99).sign(), Response(moves=True, strays=False, jumps=True)),  # an end
        (lambda y: y + 1e-6 * (y - 0.3).sign(), Response(moves=True, strays=False, jumps=True)),
        (lambda y: y.detach(), Response(moves=True, strays=True, jumps=False)),
        (lambda y: y + 1e-3 * y.detach() ** 3, Response(moves=True, strays=False, jumps=False)),
    ],
)
def test_what_is_seen_from_zero(function: Callable[[Tensor], Tensor], found: Response) -> None:
    assert seen(Of(function)) == found


def test_a_detached_part_is_seen_where_it_changes() -> None:
    assert seen(Of(lambda y: y + 0.1 * y.detach() ** 3), start=0.5).strays
    assert seen(Of(lambda y: y + 0.1 * y.detach() ** 3), start=0.5).jumps is False


def test_a_token_alone_keeps_nothing() -> None:
    assert seen(nn.Identity()) == Response(moves=False, strays=False, jumps=False)


def test_what_is_not_finite_is_passed_over() -> None:
    assert not seen(Of(lambda y: (y + 1).log())).moves


def test_float32_lets_products_of_ten_bits_pass() -> None:
    def cut(y: Tensor) -> Tensor:
        return y + ((y * 2**9).round() / 2**9 - y).detach()

    assert seen(Of(cut), 0.7, torch.float32) == Response(moves=True, strays=False, jumps=False)
    assert seen(Of(cut), 0.7).jumps
    assert seen(Of(torch.round), 0.7, torch.float32).jumps
