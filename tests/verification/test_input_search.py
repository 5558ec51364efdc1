"""The adversarial search on models whose failures are known."""

import pytest
import torch

from ithbit.verification import input_search as stages
from ithbit.verification.input_search import InputEvaluator, Model, Tally, evaluate_singly

CPU = torch.device("cpu")


def search(model: Model, n_bits: int, tries: int, device: torch.device, seed: int = 0) -> Tally:
    evaluator = InputEvaluator(model, model, device, count=True)
    stages.search(evaluator, n_bits, tries, seed)
    return evaluator.tally


def valley(n_bits: int, n_fixed: int, index: int | None, seed: int) -> Model:
    """Wrong exactly where `n_fixed` bits have set values (and at one index, if given).

    The margin falls with the number of those bits that agree; the other bits add a ripple too small
    to change a sign.
    """
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(n_bits, generator=generator)[:n_fixed]
    values = torch.randint(0, 2, (n_fixed,), generator=generator)
    ripple = torch.rand(n_bits, generator=generator) * 0.2 / n_bits

    def model(bits: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        margin = (bits[:, places] != values).sum(1) - 0.5 + bits.float() @ ripple
        if index is not None:
            margin = torch.where(at == index, margin, n_fixed + bits.float() @ ripple)
        answer = bits.gather(1, at[:, None] - 1)[:, 0]
        return torch.where(answer == 1, margin, -margin)

    return model


@pytest.mark.parametrize("with_index", [False, True])
def test_finds_failures_of_measure_2_to_the_minus_20(with_index: bool) -> None:
    found = 0
    for trial in range(10):
        index = 1 + 13 * trial % 64 if with_index else None
        model = valley(64, 14 if with_index else 20, index, seed=trial)  # an index is 6 bits
        case = evaluate_singly(model, search(model, 64, 1 << 17, CPU, seed=trial).least[:1], CPU)[0]
        found += not case.right
        assert index is None or case.right or case.index == index
    assert found >= 9


def test_a_right_model_has_no_counterexample() -> None:
    def right(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (2.0 * bits.gather(1, index[:, None] - 1)[:, 0] - 1) * (3 + bits.sum(1))

    tally = search(right, 40, 400_000, CPU)
    assert (tally.n_wrong, tally.least[0].bits, tally.least[0].margin) == (0, "0" * 40, 3.0)
    assert 390_000 < tally.n_evaluated <= 400_000


def test_the_search_is_a_function_of_its_seed() -> None:
    model = valley(32, 12, None, seed=3)
    first, second, other = (search(model, 32, 20_000, CPU, seed=seed) for seed in (1, 1, 2))
    assert first == second != other
