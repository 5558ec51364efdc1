"""Inputs that a person would try first but uniform bits never show: plain strings, every index.

Kinds of strings, in this order, each followed by its complement: *constant*; *one bit* set; *cuts*,
zeros and then ones; *periods*, one bit set in every 2 to 8, at every phase, and blocks of equal
length; *two bits* set. All but the last are few: about 5 n + 60 strings. The strings with two bits
set number n (n - 1) / 2, times n indices, so they are thinned out evenly to meet a limit.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

_PERIODS = range(2, 9)


def _with_complements(rows: Tensor) -> Tensor:
    return torch.stack([rows, 1 - rows], 1).flatten(0, 1)


def plain_strings(n_bits: int) -> Tensor:
    """All kinds except two bits, each string once: string bit, uint8.

    >>> ["".join(map(str, bits)) for bits in plain_strings(3).tolist()]
    ['000', '111', '100', '011', '010', '101', '001', '110']
    """
    at = torch.arange(n_bits)
    rows = [at < 0, *(at == i for i in range(n_bits)), *(at >= cut for cut in range(1, n_bits))]
    rows += [at % p == phase for p in _PERIODS if p < n_bits for phase in range(p)]
    rows += [at // block % 2 == 1 for block in range(2, n_bits // 2)]
    return _distinct(_with_complements(torch.stack(rows).to(torch.uint8)))


def two_bit_strings(n_bits: int, most: int) -> Tensor:
    """At most `most` strings with two bits set or two not set, evenly spaced among all of them."""
    total = n_bits * (n_bits - 1) // 2
    count = min(total, most // 2)
    number = torch.arange(count) * total // max(count, 1)
    # Pair number b (b - 1) / 2 + a is {a, b}, a < b.
    b = ((1 + (1 + 8 * number.double()).sqrt()) / 2).long()
    b += (b * (b + 1) // 2 <= number).long() - (b * (b - 1) // 2 > number).long()
    a = number - b * (b - 1) // 2
    at = torch.arange(n_bits)
    return _with_complements(((at == a[:, None]) | (at == b[:, None])).to(torch.uint8))


def structured_bytes(n_bits: int) -> int:
    """Bytes needed to make the plain strings: about 5 n of them, in at least three copies."""
    return 15 * n_bits**2


def _distinct(rows: Tensor) -> Tensor:
    first = {row.tobytes(): at for at, row in reversed(list(enumerate(rows.numpy())))}
    return rows[sorted(first.values())]


def structured_strings(n_bits: int, most: int) -> Tensor:
    """All kinds, each string once: string bit, uint8; as many two-bit ones as `most` allows."""
    plain = plain_strings(n_bits)
    return _distinct(torch.cat([plain, two_bit_strings(n_bits, max(most - len(plain), 0))]))


def every_index(
    strings: Tensor, limit: int, batch: int, device: torch.device | str = "cpu"
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every string with every index, in batches of (bits, index); if there are more than `limit`,
    evenly spaced ones.

    >>> bits, index = next(every_index(plain_strings(3), limit=100, batch=6))
    >>> bits.tolist()[:4], index.tolist()
    ([[0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1]], [1, 2, 3, 1, 2, 3])
    """
    strings, n_bits = strings.to(device), strings.shape[1]
    total = len(strings) * n_bits
    count = min(total, limit)
    for start in range(0, count, batch):
        number = torch.arange(start, min(start + batch, count), device=device) * total // count
        yield strings[number // n_bits], number % n_bits + 1
