"""Search for a wrong answer, starting where one is most likely.

*Structured* inputs are plain strings (`tasks/structured.py`); those with *two bits* are so many
that they come later. *Densities* are strings of two densities with a cut (`tasks/stream.py`).
*Descent* starts from the inputs of least margin so far and makes single changes, trying all n bit
flips and all n - 1 other indices, as long as the margin falls. *Search* spends a budget: first on
random inputs, half of them densities, every index equally often; then on descent from those of
least margin at each index, where a restart at a local minimum gets some bits flipped at random.
*Empirical*: finding nothing proves nothing.
"""

import torch
from torch import Tensor

from ithbit.tasks.sampling import draw_densities, draw_examples, stream_keys
from ithbit.tasks.structured import every_index, plain_strings, two_bit_strings
from ithbit.verify.margins import Asker, order, tensors

_BATCH = 1 << 12  # inputs tried at once, before looking for a wrong one; a GPU takes more
_CUDA_BATCH = 1 << 16
_STARTS = 64  # of the descent
_RANDOM_SHARE = 4  # one in so many tries of the search is random, the others descend
_RESTARTS = 64  # of the search, at least; every index has at least one
_CUDA_RESTARTS = 512


def _batch(device: torch.device) -> int:
    return _CUDA_BATCH if device.type == "cuda" else _BATCH


def structured(ask: Asker, n_bits: int, limit: int) -> None:
    """Try at most `limit` structured inputs, without those with two bits."""
    for inputs in every_index(plain_strings(n_bits), limit, _batch(ask.device), ask.device):
        ask(*inputs)


def two_bits(ask: Asker, n_bits: int, limit: int) -> None:
    """Try at most `limit` inputs with two bits set or two not set."""
    strings = two_bit_strings(n_bits, limit // n_bits)
    for inputs in every_index(strings, limit, _batch(ask.device), ask.device):
        ask(*inputs)


def densities(ask: Asker, n_bits: int, count: int, seed: int) -> None:
    """Try `count` strings of two densities with a cut, at uniform indices."""
    keys = stream_keys([seed], ask.device)
    for first in range(0, count, _batch(ask.device)):
        drawn = draw_densities(keys, n_bits, first, min(_batch(ask.device), count - first))
        ask(drawn.bits[0], drawn.index[0])


def descent(ask: Asker, n_bits: int, limit: int) -> None:
    """Descend from the least margins of the tally, each by its best change until none is better,
    with at most `limit` inputs."""
    starts = ask.tally.least[: min(_STARTS, limit // (2 * n_bits - 1))]
    bits, index = tensors(starts, ask.device)
    least = torch.tensor([order(case) for case in starts], device=ask.device)
    while len(index) and len(index) * (2 * n_bits - 1) <= limit:
        limit -= len(index) * (2 * n_bits - 1)
        bits, index, value = _best_change(ask, bits, index)
        better = value < least
        bits, index, least = bits[better], index[better], value[better]


def search(ask: Asker, n_bits: int, tries: int, seed: int = 0) -> None:
    """Try at most `tries` inputs (at least one per restart) in search of the least margin.

    >>> def sure(bits, index):
    ...     return (bits.gather(1, index[:, None] - 1)[:, 0] * 2.0 - 1) * (1 + bits.sum(1))
    >>> ask = Asker(sure, sure, torch.device("cpu"))
    >>> search(ask, 32, 200_000)
    >>> ask.tally.least[0].margin
    1.0
    """
    generator = torch.Generator().manual_seed(seed)
    end = ask.tally.n_evaluated + tries
    wanted = _CUDA_RESTARTS if ask.device.type == "cuda" else _RESTARTS
    restarts = -(-wanted // n_bits) * n_bits
    bits, index, least = _random_phase(ask, n_bits, restarts, tries // _RANDOM_SHARE, seed)
    while ask.tally.n_evaluated + restarts * (2 * n_bits - 1) <= end:
        moved, at, value = _best_change(ask, bits, index)
        better = value < least
        index = torch.where(better, at, index)
        least = torch.where(better, value, torch.inf)  # a thrown restart takes any first step
        bits = torch.where(better[:, None], moved, _thrown(bits, generator))


def _random_phase(
    ask: Asker, n_bits: int, restarts: int, tries: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The random input of least margin for each restart: bits, index, margin."""
    device, row = ask.device, torch.arange(restarts, device=ask.device)
    best_index, keys = row % n_bits + 1, stream_keys([seed], ask.device)
    best_bits = torch.zeros(restarts, n_bits, dtype=torch.uint8, device=device)
    best = torch.full((restarts,), torch.inf, device=device)
    rows, first = max(1, min(1 << 16, tries) // restarts), 0
    while True:  # at least once: every restart needs an input to start from
        # Each restart gets consecutive strings, so that every index has both kinds.
        bits = draw_examples(keys, n_bits, first, rows * restarts, "mixed").bits[0]
        bits = bits.view(restarts, rows, n_bits).transpose(0, 1)
        flat_index = best_index.repeat(rows)
        found = ask(bits.flatten(0, 1), flat_index)
        value, at = found.view(rows, restarts).min(0)
        value = value.to(best.dtype)
        best_bits = torch.where((value < best)[:, None], bits[at, row], best_bits)
        best = torch.minimum(best, value)
        first += rows * restarts
        if tries - first < rows * restarts:
            return best_bits, best_index, best


def _best_change(ask: Asker, bits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each input, the single change of least margin: bits, index, margin."""
    n = bits.shape[1]
    one = torch.eye(n, dtype=torch.uint8, device=bits.device)
    same = bits[:, None].expand(-1, n - 1, -1)
    near = torch.cat([bits[:, None] ^ one, same], 1)
    other = (index[:, None] - 1 + torch.arange(1, n, device=bits.device)) % n + 1
    at = torch.cat([index[:, None].expand(-1, n), other], 1)
    value, best = ask(near.flatten(0, 1), at.flatten()).view(len(index), -1).min(1)
    row = torch.arange(len(index), device=bits.device)
    return near[row, best], at[row, best], value


def _thrown(bits: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each bit with chance 1/4: enough to leave a basin, not enough to lose everything."""
    flips = torch.rand(bits.shape, generator=generator) < 0.25
    return bits ^ flips.to(bits.device, torch.uint8)
