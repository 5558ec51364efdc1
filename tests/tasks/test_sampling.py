"""The tensor stream against its integer twin, and whether what it draws is fair."""

import hashlib
import math

import pytest
import torch

from ithbit.families import Task
from ithbit.spec import EXAMPLES
from ithbit.tasks.indexing import Instance
from ithbit.tasks.sampling import (
    BELOW,
    BLOCKS_BELOW,
    BLOCKS_RISE,
    CUT,
    CUTS,
    DOUBLE_LENGTH_SEED,
    GAMMA,
    HALF_LENGTH_SEED,
    HELD_OUT_SEED,
    LAST_SHIFT,
    MIX,
    MORE_CUT,
    OTHER_HALF,
    RISE,
    RUN,
    SHARE,
    STEP,
    draw_examples,
    stream_keys,
    words_per_example,
    words_per_odd,
)

SIGMAS = 5  # the seeds are fixed, so a bound that holds once holds always
N_DRAWN = 40_000
_MASK = (1 << 64) - 1


def stirred(word: int) -> int:
    for shift, factor in MIX:
        word = ((word ^ (word >> shift)) * factor) & _MASK
    return word ^ (word >> LAST_SHIFT)


def _key(seed: int) -> int:
    return stirred(((seed + 1) * GAMMA) & _MASK)


def stream_word(seed: int, counter: int) -> int:
    """The 64-bit word of a seed's stream at a counter.

    >>> stream_word(0, 0) == stream_word(0, 0) != stream_word(1, 0)
    True
    """
    return stirred((_key(seed) + (counter + 1) * GAMMA) & _MASK)


def zeros(step: int, n_cuts: int = 1) -> int:
    """In how many of 2^16 cases a bit is 0, for a random 10-bit number.

    >>> zeros(0), zeros(512), zeros(1023), zeros(300, n_cuts=5)
    (0, 32813, 65536, 5696)
    """
    odd = 2 * step + 1
    chance = RISE * odd // RUN - BELOW if n_cuts == 1 else BLOCKS_RISE * odd - BLOCKS_BELOW
    return min(max(chance, 0), 1 << SHARE)


def draw(task: Task, n_bits: int, seed: int, k: int, examples: str = "uniform") -> Instance:
    """Example k of a seed: index uniform (to 2^-32), bits independent given the densities.

    >>> draw("rhi", 4, seed=0, k=0)
    Instance(task='rhi', bits=(0, 1, 1, 1), index=3)
    >>> "".join(map(str, draw("rhi", 32, seed=0, k=11, examples="mixed").bits))
    '00000111111111111111111111111111'
    >>> "".join(map(str, draw("rhi", 32, seed=0, k=11, examples="blocks").bits))
    '11111000000000000111111111111111'
    """
    first = k * words_per_example(n_bits)
    word = stream_word(seed, first)
    index = 1 + (((word >> 32) * n_bits) >> 32)
    if CUTS[examples] and k % 2:
        return Instance(task, _two_densities(n_bits, seed, k, word, CUTS[examples]), index)
    bits = tuple((stream_word(seed, first + 1 + j // 64) >> (j % 64)) & 1 for j in range(n_bits))
    return Instance(task, bits, index)


def _two_densities(n_bits: int, seed: int, k: int, word: int, n_cuts: int) -> tuple[int, ...]:
    first, steps = OTHER_HALF + k * words_per_odd(n_bits), (1 << STEP) - 1
    one, other = zeros(word & steps, n_cuts), zeros(word >> STEP & steps, n_cuts)
    cuts = [(word >> (32 - CUT) & (1 << CUT) - 1) * (n_bits + 1) >> CUT]
    for at in range(0, (n_cuts - 1) * MORE_CUT, MORE_CUT):
        share = stirred(word) >> at & (1 << MORE_CUT) - 1
        cuts.append(share * 2 * (n_bits + 1) >> MORE_CUT)
    drawn = (
        stream_word(seed, first + j * SHARE // 64) >> (j * SHARE % 64) & (1 << SHARE) - 1
        for j in range(n_bits)
    )
    ahead = (sum(j < cut for cut in cuts) for j in range(n_bits))  # number of cuts after bit j
    return tuple(int(x >= (one if c % 2 else other)) for x, c in zip(drawn, ahead, strict=True))


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 63, 64, 65, 127, 128, 129, 130])
def test_both_streams_are_the_same(n, kind) -> None:
    seeds = [0, 1, 10_003, 2**40]
    examples = draw_examples(stream_keys(seeds), n, 1_000_000_007, 5, kind)
    assert examples.bits.shape == (4, 5, n)
    assert examples.bits.dtype == torch.uint8
    for s, seed in enumerate(seeds):
        for k in range(5):
            instance = draw("rhi", n, seed, 1_000_000_007 + k, kind)
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


@pytest.mark.parametrize("kind", EXAMPLES)
def test_draws_do_not_depend_on_how_they_are_grouped(kind) -> None:
    whole = draw_examples(stream_keys([5, 6]), 70, 0, 20, kind)
    tail = draw_examples(stream_keys([6]), 70, 13, 7, kind)
    assert torch.equal(whole.bits[1, 13:], tail.bits[0])
    assert torch.equal(whole.index[1, 13:], tail.index[0])
    moved = draw_examples(stream_keys([4, 6]), 70, torch.tensor([[8], [13]]), 7, kind)
    assert torch.equal(moved.bits[1], tail.bits[0])


DRAWN_AT_FIRST = {
    "uniform": "d2dad444b4fc345d",
    "mixed": "066d98a1d42c3e6c",
    "blocks": "55a7df6d358853ac",
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_draws_are_those_of_the_first_version(kind) -> None:
    """Stored runs name the kind alone, so a recipe never changes."""
    examples = draw_examples(stream_keys([0, 7]), 130, first=3, count=50, examples=kind)
    text = examples.bits.numpy().tobytes() + examples.index.numpy().tobytes()
    assert hashlib.sha256(text).hexdigest()[:16] == DRAWN_AT_FIRST[kind]


@pytest.mark.parametrize("n", [1, 5, 64])
def test_mixed_examples_are_half_uniform_half_two_densities_with_a_cut(n) -> None:
    """*Empirical*: counts within 5 standard deviations of the recipe in real numbers."""
    uniform = draw_examples(stream_keys([3]), n, 0, 2 * N_DRAWN)
    mixed = draw_examples(stream_keys([3]), n, 0, 2 * N_DRAWN, "mixed")
    assert torch.equal(mixed.index, uniform.index)
    assert torch.equal(mixed.bits[0, ::2], uniform.bits[0, ::2])
    odd = mixed.bits[0, 1::2].double()
    limit = SIGMAS / math.sqrt(N_DRAWN)
    assert (2 * odd - 1).mean(0).abs().max() < limit
    # Both chances: 0 or 1 with 1/7 each, else uniform; d is one, d' another, c the cut.
    square = 1 / 7 + 5 / 7 / 3  # E d^2
    apart = torch.arange(n)[:, None] - torch.arange(n)[None, :]
    together = 1 - apart.abs() / (n + 1)  # the chance that no cut comes between two bits
    expected = together * square + (1 - together) / 4
    found = odd.T @ odd / N_DRAWN
    off = (found - expected)[~torch.eye(n, dtype=torch.bool)]
    assert len(off) == 0 or off.abs().max() < SIGMAS * math.sqrt(0.25 / N_DRAWN)
    # All equal: no cut that shows and an even density, or both sides at the same end.
    sides = [_all_equal(c) * _all_equal(n - c) / 2 for c in range(1, n)]
    constant = (2 * _all_equal(n) + sum(sides)) / (n + 1)
    share = (odd.mean(1) == odd.mean(1).round()).double().mean().item()
    assert abs(share - constant) < SIGMAS * math.sqrt(constant * (1 - constant) / N_DRAWN) + 1e-4


@pytest.mark.parametrize("n", [1, 5, 64])
def test_blocks_are_half_uniform_half_two_densities_in_turn(n) -> None:
    """*Empirical*: as for mixed examples, with four more cuts that each show with chance 1/2."""
    uniform = draw_examples(stream_keys([3]), n, 0, 2 * N_DRAWN)
    blocks = draw_examples(stream_keys([3]), n, 0, 2 * N_DRAWN, "blocks")
    assert torch.equal(blocks.index, uniform.index)
    assert torch.equal(blocks.bits[0, ::2], uniform.bits[0, ::2])
    odd = blocks.bits[0, 1::2].double()
    assert (2 * odd - 1).mean(0).abs().max() < SIGMAS / math.sqrt(N_DRAWN)
    # Two bits share a density if an even number of cuts is between them: the mean of (-1)^cuts.
    apart = (torch.arange(n)[:, None] - torch.arange(n)[None, :]).abs() / (n + 1)
    even = (1 + (1 - 2 * apart) * (1 - apart) ** 4) / 2
    square = 1 / 4 + 1 / 2 / 3  # E d^2: a chance is 0 or 1 with 1/4 each, else uniform
    found = odd.T @ odd / N_DRAWN
    off = (found - even * square - (1 - even) / 4)[~torch.eye(n, dtype=torch.bool)]
    assert len(off) == 0 or off.abs().max() < SIGMAS * math.sqrt(0.25 / N_DRAWN)


def _all_equal(n: int) -> float:
    """The chance that n bits of one density are equal."""
    return 2 / 7 + 5 / 7 * 2 / (n + 1)


def test_densities_are_those_of_the_recipe() -> None:
    steps = range(1 << 10)
    found = [zeros(step) for step in steps]
    exact = [min(max(1.4 * (step + 0.5) / 1024 - 0.2, 0), 1) * 65536 for step in steps]
    assert max(abs(a - b) for a, b in zip(found, exact, strict=True)) <= 1
    assert found.count(0) == found.count(65536)
    assert abs(found.count(0) / 1024 - 1 / 7) < 1e-3
    blocks = [zeros(step, n_cuts=5) for step in steps]
    exact = [min(max(2 * (step + 0.5) / 1024 - 0.5, 0), 1) * 65536 for step in steps]
    assert blocks == exact
    assert blocks.count(0) == blocks.count(65536) == 256


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
