"""The page docs/kernels.md: its launches are those of a step, its refusals those of the code."""

import re
from collections.abc import Callable

import pytest
import torch
from tests.support.paths import ROOT

from ithbit.engine.device import choose_device
from ithbit.engine.steppers.choice import refusal
from ithbit.spec import ModelSpec, Protocol

PAGE = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()]
LAUNCHES = {row[0]: row[1:] for row in ROWS if len(row) == 6 and " L + " in row[1]}
FAMILIES = {
    "softmax-causal": "softmax attention",
    "linear-full": "linear attention",
    "gru": "GRU",
    "mamba2": "Mamba2",
}


@pytest.mark.parametrize("name", sorted(set(FAMILIES.values())))
def test_the_table_follows_its_formula(name) -> None:
    formula, *numbers = LAUNCHES[name]
    factor, rest = map(int, re.fullmatch(r"(\d+) L \+ (\d+)", formula).groups())
    assert [int(number) for number in numbers] == [factor * n + rest for n in (1, 2, 3, 4)]


@pytest.fixture
def launches(triton, monkeypatch) -> Callable[[ModelSpec], int]:
    """The number of launches of a model's step."""
    if torch.cuda.is_available():
        pytest.skip("launches are counted in the interpreter")
    from tests.support.stacked_truth import by_kernels, fresh_step, started
    from triton.runtime.interpreter import GridExecutor

    launched, launch = [], GridExecutor.__call__

    def counted(self, *args, **kwargs):
        launched.append(self)
        return launch(self, *args, **kwargs)

    def of(spec: ModelSpec) -> int:
        start = started(spec, n_seeds=1)
        by_kernels(start, 1, Protocol(), fresh_step(start, 1))
        return len(launched)

    monkeypatch.setattr(GridExecutor, "__call__", counted)
    return of


@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_has_as_many_launches(family, n_layers, launches) -> None:
    spec = ModelSpec("rhi", family, 1, n_layers)
    assert launches(spec) == int(LAUNCHES[FAMILIES[family]][n_layers])


@pytest.mark.parametrize("width", [4, 8])
def test_a_narrow_gru_has_fewer(width, launches) -> None:
    factor, rest = map(int, re.search(r"the GRU has (\d+) L \+ (\d+)", PAGE).groups())
    assert launches(ModelSpec("rhi", "gru", 1, 2, width)) == factor * 2 + rest


SAID = re.findall(r"^\| ((?:the kernels|out of memory) .+?) \|", PAGE, re.MULTILINE)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("changes", "beta1"),
    [
        ({"n_bits": 513}, 0.9),
        ({"d_model": 12}, 0.9),
        ({"family": "softmax-full", "n_heads": 16}, 0.9),
        ({}, 0.0),
    ],
)
def test_refusals_are_in_the_page(changes, beta1) -> None:
    model = ModelSpec("rhi", **{"family": "gru", "n_bits": 8} | changes)
    said = refusal(model, Protocol(beta1=beta1), choose_device("cpu"))
    patterns = [re.escape(message).replace("…", ".+") for message in SAID]
    assert [message for message in patterns if re.fullmatch(message, said)]
