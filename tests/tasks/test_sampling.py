"""The tensor stream against its integer twin, and whether what it draws is fair."""

import math

import pytest
import torch

from ithbit.tasks.sampling import (
    DOUBLE_LENGTH_SEED,
    HALF_LENGTH_SEED,
    HELD_OUT_SEED,
    draw_examples,
    stream_keys,
)
from ithbit.tasks.stream import draw, stream_word

SIGMAS = 5  # the seeds are fixed, so a bound that holds once holds always
N_DRAWN = 40_000


@pytest.mark.parametrize("n", [1, 2, 8, 63, 64, 65, 128, 130])
def test_both_streams_are_the_same(n) -> None:
    seeds = [0, 1, 10_003, 2**40]
    examples = draw_examples(stream_keys(seeds), n, first=1_000_000_007, count=4)
    assert examples.bits.shape == (4, 4, n)
    assert examples.bits.dtype == torch.uint8
    for s, seed in enumerate(seeds):
        for k in range(4):
            instance = draw("rhi", n, seed, 1_000_000_007 + k)
            assert tuple(examples.bits[s, k].tolist()) == instance.bits
            assert examples.index[s, k].item() == instance.index
            assert examples.answer[s, k].item() == instance.answer


def test_the_words_are_splitmix64() -> None:
    """The published generator started at a seed's key: state += gamma, then mixed."""
    mask = (1 << 64) - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    state = mix(0x9E3779B97F4A7C15)
    assert state == 0xE220A8397B1DCDAF  # first output for seed 0, in every listing of SplitMix64
    for counter in range(5):
        state = (state + 0x9E3779B97F4A7C15) & mask
        assert stream_word(0, counter) == mix(state)


def test_draws_do_not_depend_on_how_they_are_grouped() -> None:
    whole = draw_examples(stream_keys([5, 6]), 70, first=0, count=20)
    tail = draw_examples(stream_keys([6]), 70, first=13, count=7)
    assert torch.equal(whole.bits[1, 13:], tail.bits[0])
    assert torch.equal(whole.index[1, 13:], tail.index[0])
    moved = draw_examples(stream_keys([6]), 70, first=torch.tensor(13), count=7)
    assert torch.equal(moved.bits, tail.bits)


@pytest.mark.parametrize("n", [1, 3, 8, 64, 65])
def test_indices_are_uniform_and_bits_fair_and_independent(n) -> None:
    """*Empirical*: counts within 5 standard deviations of what fair draws would give."""
    examples = draw_examples(stream_keys([3]), n, first=0, count=N_DRAWN)
    index, bits = examples.index[0], examples.bits[0].double()

    counts = torch.bincount(index, minlength=n + 1)[1:].double()
    assert index.min() == 1
    assert index.max() == n
    if n > 1:
        chi_square = ((counts - N_DRAWN / n) ** 2 / (N_DRAWN / n)).sum().item()
        assert abs(chi_square - (n - 1)) < SIGMAS * math.sqrt(2 * (n - 1))

    signs = 2 * bits - 1
    limit = SIGMAS / math.sqrt(N_DRAWN)
    assert signs.mean(0).abs().max() < limit
    products = signs.T @ signs / N_DRAWN - torch.eye(n, dtype=torch.float64)
    assert products.abs().max() < limit
    assert (2 * examples.answer.double() - 1).mean().abs() < limit
    # A bit says nothing of the index, nor one example of the next.
    position = (index.double() - index.double().mean()) / max(index.double().std().item(), 1e-9)
    assert (signs.T @ position / N_DRAWN).abs().max() < limit
    assert (signs[1:] * signs[:-1]).mean(0).abs().max() < limit


def test_no_two_sets_share_examples() -> None:
    """Training, held-out and length-shifted sets of neighbouring seeds, at n = 64."""
    shifts = (0, HELD_OUT_SEED, HALF_LENGTH_SEED, DOUBLE_LENGTH_SEED)
    assert shifts == (0, 10_000, 20_000, 30_000)
    seeds = [seed + shift for shift in shifts for seed in range(5)]
    bits = draw_examples(stream_keys(seeds), 64, first=0, count=2000).bits
    assert len(bits.flatten(0, 1).unique(dim=0)) == 20 * 2000
