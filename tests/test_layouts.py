"""The parameters and constants of families, against the models, the libraries and their twins."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from ithbit.families import FAMILIES
from ithbit.layouts import LAYOUTS, LINEAR, MAMBA2, SOFTMAX, layout_of, model_shapes
from ithbit.models import classifier
from ithbit.reference.models import build
from ithbit.spec import ModelSpec


@pytest.mark.parametrize("positions", ["polynomial", "learned", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_has_the_models_parameters_in_their_order(family: str, positions: str) -> None:
    sizes = {"d_model": 8, "n_heads": 4, "d_ff": 12, "d_state": 6}
    spec = ModelSpec("lhi", family, 5, n_layers=2, positions=positions, **sizes)
    drawn = {name: tuple(value.shape) for name, value in classifier.init(spec, seed=0).items()}
    assert list(model_shapes(spec).items()) == list(drawn.items())
    wider = replace(spec, d_model=16)
    assert model_shapes(wider) != model_shapes(spec)


@pytest.mark.parametrize("kind", ["softmax", "linear", "gru", "mamba2"])
def test_a_bias_follows_its_weight(kind: str) -> None:
    """Fused and compiled code, which these kinds have, finds it there; a GRU has both weights
    before both biases."""
    if kind == "gru":
        assert list(LAYOUTS[kind].block) == ["ih.weight", "hh.weight", "ih.bias", "hh.bias"]
        return
    for part in (LAYOUTS[kind].enter, LAYOUTS[kind].block, LAYOUTS[kind].leave):
        names = list(part)
        for name in names:
            if name.endswith(".bias"):
                assert names[names.index(name) - 1] == name.removesuffix("bias") + "weight"


def test_the_constants_are_those_of_the_libraries() -> None:
    pytest.importorskip("transformers")
    eps = {}
    for family in ("softmax-full", "linear-full", "mamba2"):
        modules = build(ModelSpec("rhi", family, 4, d_model=8)).modules()
        eps[family] = {
            getattr(each, "eps", getattr(each, "variance_epsilon", None))
            for each in modules
            if isinstance(each, nn.LayerNorm) or "RMSNorm" in type(each).__name__
        }
    assert eps == {family: {layout_of(family).norm_eps} for family in eps}
    convolutions = [
        each
        for each in build(ModelSpec("rhi", "mamba2", 4, d_model=8)).modules()
        if isinstance(each, nn.Conv1d)
    ]
    assert [each.kernel_size for each in convolutions] == [(MAMBA2.taps,)]
    assert torch.finfo(torch.float32).tiny < SOFTMAX.norm_eps < LINEAR.denominator_eps
