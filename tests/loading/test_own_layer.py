"""A run of a user's layer loads as modules of the user's own class."""

from pathlib import Path

import pytest
import torch
from tests.support.paths import TOY_LAYERS

import ithbit
from ithbit.verification.run_verification import model_of
from ithbit.verification.stored_run import read_stored_run

TINY = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)


@pytest.mark.parametrize("name", ["RunningMean", "OneByOne"])
def test_it_is_the_users_class_and_answers_as_the_engine_does(tmp_path: Path, name: str) -> None:
    (result,) = ithbit.train(
        "lhi",
        f"{TOY_LAYERS}:{name}",
        n=3,
        layers=2,
        width=4,
        seeds=[1],
        protocol=TINY,
        store=tmp_path,
        device="cpu",
        workers=1,
    )
    model = ithbit.load(result, store=tmp_path)
    assert [type(block).__name__ for block in model.body] == [name] * 2
    stored = read_stored_run(tmp_path / result.spec.folder)
    run, weights = stored.spec, stored.weights
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2, (40, 3), generator=generator, dtype=torch.uint8)
    index = torch.randint(1, 4, (40,), generator=generator)
    expected = model_of(run, weights, torch.device("cpu"))(bits, index)
    assert torch.allclose(model(bits, index), expected, atol=1e-6)
    assert not model.training
    with pytest.raises(ithbit.IthbitError, match="has no attention maps"):
        model.attention("101", 1)
