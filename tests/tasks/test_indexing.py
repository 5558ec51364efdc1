import re

import pytest

from ithbit.errors import SpecError
from ithbit.tasks.indexing import Instance, all_inputs, n_tokens


@pytest.mark.parametrize(
    ("task", "bits", "index", "message"),
    [
        ("mid", (0, 1), 1, "unknown task 'mid'; choose one of rhi, lhi"),
        ("rhi", (), 1, "bits must be a non-empty string of 0 and 1, got ()"),
        ("rhi", (0, 2), 1, "bits must be a non-empty string of 0 and 1, got (0, 2)"),
        ("lhi", (0, 1), 0, "the index must be in 1..2, got 0"),
        ("lhi", (0, 1), 3, "the index must be in 1..2, got 3"),
    ],
)
def test_impossible_instances_are_refused(task, bits, index, message) -> None:
    with pytest.raises(SpecError, match="^" + re.escape(message) + "$"):
        Instance(task, bits, index)


def test_the_answer_is_the_indexed_bit_and_tokens_are_in_the_tasks_order() -> None:
    bits = (1, 1, 0, 1)
    for index in range(1, 5):
        for task in ("rhi", "lhi"):
            instance = Instance(task, bits, index)
            assert instance.answer == (0 if index == 3 else 1)
            assert len(instance.tokens) == n_tokens(task, 4)
    assert Instance("rhi", bits, 3).tokens == ("bit 1", "bit 1", "bit 0", "bit 1", "index 3")
    assert Instance("lhi", bits, 3).tokens == ("index 3", "bit 1", "bit 1", "bit 0", "bit 1", "end")


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [1, 5, 64, 65536])
def test_every_input_is_listed_exactly_once(n, batch_size) -> None:
    seen = []
    for bits, index in all_inputs(n, batch_size):
        assert len(bits) == len(index) <= batch_size
        seen += [(*row, i) for row, i in zip(bits.tolist(), index.tolist(), strict=True)]
    assert len(seen) == n * 2**n
    assert len(set(seen)) == len(seen)
    assert all(set(row[:-1]) <= {0, 1} and 1 <= row[-1] <= n for row in seen)
    assert seen == sorted(seen)


def test_long_inputs_are_listed_from_the_start() -> None:
    """The largest length allowed: no number of an input overflows."""
    bits, index = next(all_inputs(48, batch_size=96))
    assert bits.shape == (96, 48)
    assert bits.sum(0).tolist() == [0] * 47 + [48]
    assert index.tolist() == list(range(1, 49)) * 2


@pytest.mark.parametrize("n", [0, 49, -1])
def test_lengths_that_cannot_be_listed_are_refused(n) -> None:
    with pytest.raises(SpecError, match=rf"^all inputs can be listed for n in 1..48, got n = {n}$"):
        next(all_inputs(n))
