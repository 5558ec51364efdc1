"""What a layer does beside computing is noticed and undone, in this process too."""

import os
import random

import pytest
import torch
from tests.support import wild_layers

from ithbit.contract.check import check_contract
from ithbit.contract.findings import CheckSettings

QUICK = CheckSettings(seconds=0.2)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Prints", "it prints ('read a batch') when it reads an input"),
        ("Exits", "it exits (status 7) when it reads an input"),
        ("ExitsWhenBuilt", "cannot be built"),
        ("SetsDtype", "it changes torch's default dtype"),
        ("SetsGradMode", "it changes whether gradients are recorded"),
        ("SetsThreads", "it changes torch's number of threads"),
        ("SetsEnvironment", "it changes the environment"),
        ("SetsFolder", "it changes the current folder"),
        ("Patches", "it changes functions of torch"),
        ("Seeds", "it sets torch's random seed"),
        ("SeedsPython", "it sets Python's random seed"),
        ("Raises", "it raises on every input tried: RuntimeError: no kernel"),
        ("Nan", "it gives NaN on an input of ordinary size"),
        ("NoTensor", "it gives str for an input"),
        ("Shortens", "the output must have an entry for each (batch, token)"),
        ("TakesIds", "it takes token ids"),
        ("NeedsMore", "its forward needs graph"),
    ],
)
def test_a_layer_that_does_more_than_compute_gets_a_sentence(name: str, sentence: str) -> None:
    before = _state()
    report = check_contract(getattr(wild_layers, name), QUICK)
    assert report.exit_code == 2
    assert sentence in report.cannot
    assert _state() == before


def _state() -> tuple[object, ...]:
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        os.getcwd(),
        dict(os.environ),
        torch.get_rng_state().tolist(),
        random.getstate(),
        torch.randn,
    )


def test_a_check_leaves_the_process_as_it_was() -> None:
    before = _state()
    assert check_contract(wild_layers.Keeps, QUICK).exit_code == 0
    assert _state() == before
