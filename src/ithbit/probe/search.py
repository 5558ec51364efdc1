"""Looking for a wrong answer where the inputs are too many to try them all.

First random inputs, every index equally often; then, from the one of least margin of each index,
descent by single changes: all n flips of a bit and all n - 1 other indices are tried for all
restarts in one batch, and each restart takes its best. A restart at a local minimum is thrown a few
random flips away. *Empirical*: finding nothing proves nothing.
"""

import torch
from torch import Tensor

from ithbit.probe.margins import Model, Tally, margins

_RANDOM_SHARE = 4  # one in so many tries is random, the rest descends
_RESTARTS = 64  # at least; an index has one at least
_RANDOM_BATCH = 1 << 16


def search(model: Model, n_bits: int, tries: int, device: torch.device, seed: int = 0) -> Tally:
    """Evaluate at most `tries` inputs (a restart an index at least) in search of the least margin.

    >>> def sure(bits, index):
    ...     return (bits.gather(1, index[:, None] - 1)[:, 0] * 2.0 - 1) * (1 + bits.sum(1))
    >>> search(sure, 32, 200_000, torch.device("cpu")).least[0].margin
    1.0
    """
    generator = torch.Generator().manual_seed(seed)
    tally = Tally()
    restarts = -(-_RESTARTS // n_bits) * n_bits
    bits, index, least = _random_phase(model, n_bits, restarts, tries, device, generator, tally)
    neighbours = restarts * (2 * n_bits - 1)
    while tally.n_evaluated + neighbours <= tries:
        near_bits, near_index = _neighbours(bits, index)
        flat_bits, flat_index = near_bits.flatten(0, 1), near_index.flatten()
        found = margins(model(flat_bits, flat_index), flat_bits, flat_index)
        tally.add(flat_bits, flat_index, found)
        value, at = found.view(restarts, -1).min(1)
        row = torch.arange(restarts, device=device)
        better = value < least
        moved = torch.where(better[:, None], near_bits[row, at], bits)
        index = torch.where(better, near_index[row, at], index)
        least = torch.where(better, value, torch.inf)  # a thrown restart takes any first step
        bits = torch.where(better[:, None], moved, _thrown(bits, generator))
    return tally


def _random_phase(
    model: Model,
    n_bits: int,
    restarts: int,
    tries: int,
    device: torch.device,
    generator: torch.Generator,
    tally: Tally,
) -> tuple[Tensor, Tensor, Tensor]:
    """The best of the random inputs in each of the restarts' slots: bits, index, margin."""
    best_bits = torch.zeros(restarts, n_bits, dtype=torch.uint8, device=device)
    best_index = torch.arange(restarts, device=device) % n_bits + 1
    best = torch.full((restarts,), torch.inf, device=device)
    left = tries // _RANDOM_SHARE
    rows = max(1, min(_RANDOM_BATCH, left) // restarts)
    row = torch.arange(restarts, device=device)
    while True:  # at least once: every restart needs an input to start from
        drawn = torch.randint(0, 2, (rows, restarts, n_bits), generator=generator)
        bits = drawn.to(device, torch.uint8)
        index = best_index.expand(rows, -1)
        flat_bits, flat_index = bits.flatten(0, 1), index.flatten()
        found = margins(model(flat_bits, flat_index), flat_bits, flat_index)
        tally.add(flat_bits, flat_index, found)
        value, at = found.view(rows, restarts).min(0)
        value = value.to(best.dtype)
        best_bits = torch.where((value < best)[:, None], bits[at, row], best_bits)
        best = torch.minimum(best, value)
        left -= rows * restarts
        if left < rows * restarts:
            break
    return best_bits, best_index, best


def _neighbours(bits: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Every single flip, and every other index with the same bits: restart neighbour (bit)."""
    n = bits.shape[1]
    one = torch.eye(n, dtype=torch.uint8, device=bits.device)
    flipped = bits[:, None] ^ one
    same = bits[:, None].expand(-1, n - 1, -1)
    other = (index[:, None] - 1 + torch.arange(1, n, device=bits.device)) % n + 1
    return torch.cat([flipped, same], 1), torch.cat([index[:, None].expand(-1, n), other], 1)


def _thrown(bits: Tensor, generator: torch.Generator) -> Tensor:
    """Each bit flipped with chance 1/4: far enough to leave a basin, near enough to keep some."""
    flips = torch.rand(bits.shape, generator=generator) < 0.25
    return bits ^ flips.to(bits.device, torch.uint8)
