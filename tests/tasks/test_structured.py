"""Structured inputs: which strings they are, and that a limit thins them out evenly."""

import itertools

import pytest
import torch

from ithbit.tasks.structured import every_index, plain_strings, structured_strings, two_bit_strings


def texts(strings: torch.Tensor) -> list[str]:
    return ["".join(map(str, bits)) for bits in strings.tolist()]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8, 9, 32])
def test_every_kind_is_there_once_with_its_complement(n) -> None:
    found = texts(structured_strings(n, 10**6))
    assert len(set(found)) == len(found)
    wanted = {"0" * n}
    wanted |= {"0" * i + "1" + "0" * (n - 1 - i) for i in range(n)}
    wanted |= {"0" * cut + "1" * (n - cut) for cut in range(1, n)}
    wanted |= {("10" * n)[:n], ("01" * n)[:n]} if n > 2 else set()
    wanted |= {("001" * n)[:n]} if n > 3 else set()
    wanted |= {
        "".join("1" if k in pair else "0" for k in range(n))
        for pair in itertools.combinations(range(n), 2)
    }
    flip = str.maketrans("01", "10")
    wanted |= {text.translate(flip) for text in wanted}
    assert wanted <= set(found)
    assert {text.translate(flip) for text in found} == set(found)
    assert found[: min(2, 2**n)] == ["0" * n, "1" * n]  # the plainest first


def test_small_lengths_have_all_strings() -> None:
    for n in (1, 2, 3, 4):
        assert len(structured_strings(n, 10**6)) == 2**n


@pytest.mark.parametrize("n", [2, 5, 64, 1000])
def test_pairs_are_those_of_their_numbers(n) -> None:
    """All of them, or evenly spread ones: each string has two ones, or two zeros."""
    found = two_bit_strings(n, 5000)
    total = n * (n - 1) // 2
    assert len(found) == min(2 * total, 5000)
    ones = found[::2].sum(1)
    assert (ones == 2).all()
    assert torch.equal(found[1::2], 1 - found[::2])
    assert len(found[::2].unique(dim=0)) == len(found) // 2
    last = found[::2].int().argmax(1).max()
    assert last >= n - 2 - n // 20  # to the end of the string


@pytest.mark.parametrize(("limit", "count"), [(10**6, 60 * 8), (480, 480), (479, 479), (7, 7)])
def test_every_index_up_to_a_limit(limit, count) -> None:
    strings = plain_strings(8)
    assert len(strings) == 60
    bits, index = (torch.cat(part) for part in zip(*every_index(strings, limit, 50), strict=True))
    assert len(bits) == len(index) == count
    pairs = {(text, i) for text, i in zip(texts(bits), index.tolist(), strict=True)}
    assert len(pairs) == count
    assert pairs <= {(text, i) for text in texts(strings) for i in range(1, 9)}
    if limit == 7:  # evenly: not the first seven
        assert len(set(texts(bits))) == 7
