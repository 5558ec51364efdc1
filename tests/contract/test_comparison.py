"""Rounding and leaks told apart, on functions of which both are known exactly."""

import pytest
import torch
from torch import Tensor

from ithbit.contract.comparison import (
    FutureEffects,
    apart,
    effects_of_future,
    jittered,
    tolerance,
    unit_of,
)

WIDTH, TOKENS = 4, 33


def compare(run, dtype=torch.float64, scale: float = 1.0, exact: bool = False) -> FutureEffects:
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 8, TOKENS, WIDTH, generator=g, dtype=torch.float64).to(dtype)
    return effects_of_future(
        lambda rows: run(rows).double(),
        x,
        [1, 4, 8, 15, 16, 17, 31, 32],
        scale * y,
        jitter=lambda values, size: jittered(values, size, g),
        unit=unit_of(dtype),
        exact=exact,
    )


def by_fft(x: Tensor) -> Tensor:
    """A running mean by Fourier transforms: causal, but every output has everyone's rounding."""
    n = 2 * x.shape[1]
    kernel = torch.full((x.shape[1], 1), 1 / TOKENS, dtype=x.dtype)
    product = torch.fft.rfft(x, n, dim=1) * torch.fft.rfft(kernel, n, dim=0)
    return torch.fft.irfft(product, n, dim=1)[:, : x.shape[1]]


def with_leak(share: float, run=lambda x: x.cumsum(1)):
    return lambda x: run(x) + share * x.mean((1, 2), keepdim=True)


def test_the_same_bits_need_no_tolerance() -> None:
    found = compare(lambda x: x.cumsum(1))
    assert (found.effects, found.exact, found.compared) == ((), True, 8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_rounding_is_no_leak(dtype: torch.dtype, scale: float) -> None:
    found = compare(by_fft, dtype, scale)
    assert not found.exact
    assert found.effects == ()


@pytest.mark.parametrize("share", [1e-12, 1e-6, 1.0])
def test_a_leak_of_any_size_is_seen_in_float64(share: float) -> None:
    for run in (lambda x: x.cumsum(1), by_fft):
        (first, *_) = compare(with_leak(share, run)).effects
        assert first.is_finite
        assert first.output < first.cut
        assert first.noise < first.size / 30


def test_a_leak_within_the_rounding_of_float32_is_seen() -> None:
    assert compare(with_leak(1e-4, by_fft), torch.float32).effects


def test_what_does_not_shrink_is_a_leak_by_its_size() -> None:
    def by_bits(x: Tensor) -> Tensor:
        return x + ((1e6 * x.sum((1, 2), keepdim=True)).floor() % 7)

    assert compare(by_bits).effects


def test_the_first_output_that_changes_is_named() -> None:
    def one_ahead_at_9(x: Tensor) -> Tensor:
        out = x.clone()
        out[:, 7] += x[:, 8]
        return out

    found = compare(one_ahead_at_9).effects
    assert [(effect.cut, effect.output) for effect in found] == [(8, 7)]


def test_nan_does_not_decide_and_is_not_equal() -> None:
    def overflows(x: Tensor) -> Tensor:
        total = x.abs().amax((1, 2), keepdim=True)
        return torch.where(total > 100, torch.nan, x)

    found = compare(overflows, scale=1e3)
    assert found.effects
    assert not any(effect.is_finite for effect in found.effects)
    nothing = compare(lambda x: torch.full_like(x, torch.nan))
    assert nothing.compared == 0
    assert apart(
        torch.tensor([torch.nan, 1.0]), torch.tensor([torch.nan, 1.0])
    ).isnan().tolist() == [
        True,
        False,
    ]


def test_a_leak_beside_an_overflow_is_a_leak() -> None:
    def both(x: Tensor) -> Tensor:
        out = x + x.mean(1, keepdim=True)
        out[:, 0] = torch.where(x.abs().amax((1, 2)) > 100, torch.inf, 0.0)[:, None]
        return out

    assert any(effect.is_finite for effect in compare(both, scale=1e3).effects)


def test_in_a_lesser_dtype_any_bit_counts_if_the_wider_one_is_exact() -> None:
    leak = with_leak(1e-7, lambda x: x)
    assert compare(leak, torch.float32, exact=True).effects


def test_token_ids_are_compared_without_a_move() -> None:
    table = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ids, other = torch.randint(0, 5, (2, 3, 9), generator=torch.Generator().manual_seed(2))

    def found(run) -> FutureEffects:
        return effects_of_future(run, ids, [2, 4, 6], other, jitter=None, unit=2**-52)

    assert found(lambda rows: table[rows].cumsum(1)).exact
    assert found(lambda rows: table[rows].flip(1).cumsum(1)).effects
    assert not found(lambda rows: by_fft(table[rows])).effects


def test_the_tolerance_covers_another_order_of_summation_only() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    moved = jittered(x, 2.0**-20, torch.Generator().manual_seed(4))
    allowed = tolerance((moved.sum() - x.sum()).abs(), x.sum().abs(), 2**-52)
    assert (x.sum() - x.flip(0).cumsum(0)[-1]).abs() <= allowed
    assert 1e-8 * x.abs().sum() > allowed
