"""Margins, chunks and what is kept of many inputs."""

import math

import torch

from ithbit.verification.input_search import Case, Tally, evaluate_singly, in_chunks, margins

CPU = torch.device("cpu")


def echo(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Right everywhere, with the index as its margin."""
    answer = bits.gather(1, index[:, None] - 1)[:, 0]
    return (2.0 * answer - 1) * index


def test_zero_and_nan_are_not_right() -> None:
    bits, index = torch.tensor([[1], [0], [1]], dtype=torch.uint8), torch.ones(3, dtype=torch.int64)
    margin = margins(torch.tensor([0.0, 0.0, math.nan]), bits, index)
    assert margin.tolist() == [0.0, 0.0, -math.inf]
    tally = Tally()
    tally.add(bits, index, margin)
    assert (tally.n_wrong, tally.wrong_by_index) == (3, {1: 3})
    assert tally.least[0] == Case("1", 1, None)
    assert not any(case.right for case in tally.least)


def test_chunks_keep_the_order_and_restore_the_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2, (10_001, 5), generator=generator).to(torch.uint8)
    index = torch.randint(1, 6, (10_001,), generator=generator)
    before = torch.get_num_threads()
    with in_chunks(echo, CPU, workers=2) as chunked:
        assert torch.equal(chunked(bits, index), echo(bits, index))
    assert torch.get_num_threads() == before


def test_the_tally_keeps_the_least_margins_of_all_batches() -> None:
    tally = Tally()
    bits = torch.ones(1000, 1, dtype=torch.uint8)
    for start in (5000.0, 1.0, 3000.0):
        # Distinct inputs have distinct texts in practice; here the index tells them apart.
        index = torch.arange(1000) + int(start)
        tally.add(bits, index, torch.arange(1000) + start)
    assert tally.n_evaluated == 3000
    assert [case.margin for case in tally.least] == [float(m) for m in range(1, 257)]


def test_alone_evaluates_one_input_at_a_time() -> None:
    sizes = []

    def watched(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        sizes.append(len(index))
        return echo(bits, index)

    cases = evaluate_singly(watched, [Case("011", 3, 9.0), Case("011", 1, 9.0)], CPU)
    assert sizes == [1, 1]
    assert cases == [Case("011", 1, 1.0), Case("011", 3, 3.0)]
