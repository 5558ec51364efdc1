"""Constructions as modules: theory's own evaluation, in PyTorch."""

import numpy as np
import pytest
import torch

import ithbit
from ithbit.errors import SpecError
from ithbit.tasks.indexing import all_inputs
from ithbit.theory.constructions import CONSTRUCTIONS, FREE_GRU

VARIANTS = [
    (entry.task, entry.family, variant)
    for entry in CONSTRUCTIONS + FREE_GRU
    for variant in entry.variants
]


@pytest.mark.parametrize("which", VARIANTS, ids="-".join)
@pytest.mark.parametrize("n", [1, 5])
def test_it_answers_as_theory_does(which, n) -> None:
    solution = ithbit.construct(which[0], which[1], n, which[2])
    model = ithbit.load(solution)
    ((bits, index),) = all_inputs(n)
    alpha = solution.logits(bits, index)
    found = model(bits, index)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.detach().numpy(), alpha[:, 1] - alpha[:, 0], atol=1e-10)
    answer = bits[np.arange(len(index)), index - 1]
    assert ((found > 0).numpy() == answer).all()


@pytest.mark.parametrize(
    "which", [each for each in VARIANTS if each[1].startswith(("softmax", "linear"))], ids="-".join
)
def test_maps_are_those_of_the_trace(which) -> None:
    solution = ithbit.construct(which[0], which[1], 5, which[2])
    maps = ithbit.load(solution).attention("10110", 4)
    assert maps.shape == (solution.depth, 1, solution.n_tokens, solution.n_tokens)
    for found, trace in zip(maps, solution.trace((1, 0, 1, 1, 0), 4)[1], strict=True):
        np.testing.assert_allclose(found[0].numpy(), trace.attention[0], atol=1e-12)


def test_hooks_and_gradients() -> None:
    model = ithbit.load(ithbit.construct("lhi", "ssm", 4))
    seen = []
    model.module.layers[0].register_forward_hook(lambda module, args, out: seen.append(out.shape))
    model("1011", 3).backward()
    assert seen == [(1, 6, 1)]
    assert model.module.output.weight.grad.abs().sum() > 0


def test_what_it_cannot_give() -> None:
    model = ithbit.load(ithbit.construct("lhi", "rnn", 4))
    with pytest.raises(SpecError, match="these weights are for n = 4, got 3 bits"):
        model("101", 1)
    with pytest.raises(SpecError, match="recurrent layers have no attention maps"):
        model.attention("1011", 1)
