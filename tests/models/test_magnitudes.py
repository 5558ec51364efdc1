"""Bounds of the numbers inside a model against the numbers themselves."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from tests.support.damaged_weights import VALUES, damaged, drawn, every_input, stacked
from tests.support.families import PAPER_FAMILIES
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ithbit.families import FAMILIES, TASKS
from ithbit.models.classifier import logits
from ithbit.models.magnitudes import largest_number, stays_finite
from ithbit.spec import ModelSpec
from ithbit.tasks.tokens import token_table


class Largest(TorchDispatchMode):
    """The largest number that any operation gives, with the squares that normalisations and GELU
    take inside; the -inf of masks are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.finite = 0.0, True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "norm" in str(func) or "gelu" in str(func):
            squares = args[0].double().square()
            self.size = max(self.size, float(squares.sum(-1).max() if "norm" in str(func)
                                             else squares.max()))  # fmt: skip
        alias = func._schema.returns[0].alias_info
        # Views are counted where they were computed; what is not yet computed holds anything.
        if "empty" not in str(func) and (alias is None or alias.is_write):
            for value in tree_leaves(out):
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    self.finite &= not bool(value.isnan().any() or (value == math.inf).any())
                    kept = value[value.isfinite()].abs()
                    self.size = max(self.size, float(kept.max()) if kept.numel() else 0.0)
        return out


SPECS = [
    *(ModelSpec(*each, n_bits=2, n_layers=layers)
      for *each, layers in product(TASKS, PAPER_FAMILIES, (1, 2))),
    *(ModelSpec("lhi", family, 2, 2, positions=positions)
      for family, positions in product(PAPER_FAMILIES, ("none", "learned", "sinusoidal", "rotary"))
      if FAMILIES[family].takes(positions)),
    *(ModelSpec("rhi", family, 2, 2, d_model=12, n_heads=3, d_ff=20, d_state=5)
      for family in PAPER_FAMILIES),
]  # fmt: skip


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_no_number_is_beyond_its_bound(family) -> None:
    """Also where weights are large, and at twice the trained length."""
    for spec, factor in product(SPECS, (1.0, 30.0)):
        if spec.family != family:
            continue
        params = {name: factor * value for name, value in stacked([drawn(spec)]).items()}
        for n_bits in (spec.n_bits, 2 * spec.n_bits):
            bound = float(largest_number(params, spec, n_bits))
            table = token_table(spec.task, n_bits, torch.float64)
            doubles = {name: value.double() for name, value in params.items()}
            with torch.no_grad(), Largest() as seen:
                logits(doubles, spec, table, every_input(n_bits, 1))
            assert seen.finite
            assert seen.size <= bound, spec


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_weights_that_may_overflow_are_named(family) -> None:
    """No damaged tensor passes, save one that no logit depends on; whole weights do."""
    spec = ModelSpec("lhi", family, 3, 2)
    names, _, members = zip(*damaged(spec, VALUES), strict=True)
    passed = stays_finite(stacked(list(members)), spec, 3).tolist()
    kept = {name for name, safe in zip(names, passed, strict=True) if safe}
    assert kept <= {"leave.unused_word"}
    assert stays_finite(stacked([drawn(spec)]), spec, 64).all()


GROWN = [ModelSpec("lhi", family, 3, 2) for family in PAPER_FAMILIES]
GROWN += [ModelSpec("lhi", family, 3, 1, positions="learned") for family in ("gru", "linear-full")]


@pytest.mark.parametrize("spec", GROWN, ids=str)
def test_weights_that_pass_give_finite_numbers_in_float32(spec) -> None:
    """Each tensor in turn made larger, until it no longer passes."""
    for name in drawn(spec):
        if name == "leave.unused_word":
            continue
        last = None
        for power in range(0, 39, 3):
            params = stacked([drawn(spec)])
            params[name] = params[name] * 10.0**power
            if not stays_finite(params, spec, spec.n_bits).all():
                break
            last = params
        assert last is not None
        assert power < 39 - 3, name
        table = token_table(spec.task, spec.n_bits)
        with torch.no_grad(), Largest() as seen:
            logits(last, spec, table, every_input(spec.n_bits, 1))
        assert seen.finite, name
        assert seen.size <= 1.001 * float(largest_number(last, spec, spec.n_bits)), name


def test_places_far_beyond_the_trained_length_count() -> None:
    """Polynomial positions grow with the square of the place."""
    spec = ModelSpec("lhi", "gru", 1, 1)
    params = {name: value.abs() for name, value in stacked([drawn(spec)]).items()}
    params["positions.polynomial"] *= 1e3
    with torch.no_grad(), Largest() as seen:
        logits(params, spec, token_table("lhi", 8), every_input(8, 1))
    assert seen.size <= float(largest_number(params, spec, 8))
    assert seen.size > float(largest_number(params, spec, 1))
