"""A family that is added goes through every command; nothing else needs to know of it.

Added as a user of the package would: an entry of `FAMILIES`, and its functions in the registry of
models.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ithbit.families import FAMILIES, Family, group
from ithbit.models.classifier import BLOCKS, Blocks
from ithbit.models.stacked import Params, Stream, linear
from ithbit.spec import ModelSpec
from ithbit.theory.architecture import architecture
from ithbit.theory.constructions import construct

Ithbit = Callable[..., tuple[int, str, str]]

SWEEP = """
task = ["lhi"]
family = ["mean", "gru"]
layers = [1]
n = [3]
seeds = "0-1"
positions = ["polynomial", "rotary"]
[protocol]
epoch_examples = 2048
held_out_examples = 128
max_epochs = 12
"""
CELL = ("--task", "lhi", "--family", "mean", "--layers", 1, "--n", 3)


def _init_block(spec: ModelSpec, generator: torch.Generator) -> Params:
    weight = torch.empty(spec.d_model, spec.d_model)
    return {"weight": weight.uniform_(-0.25, 0.25, generator=generator)}


def _block(params: Params, spec: ModelSpec, stream: Stream, readout_only: bool) -> Tensor:
    """x_k + tanh of the mean of W x_l over l <= k."""
    x, mapped = stream.all(stream.rows), stream.all(linear(stream.rows, params["weight"]))
    seen = torch.arange(1, x.shape[2] + 1, device=x.device, dtype=x.dtype)[:, None]
    out = x + torch.tanh(mapped.cumsum(2) / seen)
    return out[:, :, -1:] if readout_only else out


MEAN, MEAN_BLOCKS = Family("mean"), Blocks(_init_block, _block)


@pytest.fixture
def mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "mean", MEAN)
    monkeypatch.setitem(BLOCKS, "mean", MEAN_BLOCKS)


@pytest.mark.usefixtures("without_figures")
def test_it_goes_through_every_command(mean: None, ithbit: Ithbit, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(SWEEP)
    status, out, err = ithbit("sweep", sweep, "--store", "quiet", "--device", "cpu", "--workers", 1)
    assert status == 0, err
    runs = [path.parent.name for path in (tmp_path / "quiet").glob("*mean*/result.json")]
    assert len(runs) == 2  # rotary is left out: it does not take that

    read = ("--store", "quiet", "--settings", "any")
    for name in ("main", "accuracy", "cost"):
        status, out, err = ithbit("table", name, *read, "--format", "csv")
        assert status == 0, err
        assert ("\nLHI,mean,1,–," in out) == (name != "cost")
    for figure in ("successes", "accuracy"):
        assert ithbit("plot", figure, *read, "-o", "f.svg")[0] == 0
        assert "mean" in (tmp_path / "f.svg").read_text()
    status, _, err = ithbit("plot", "curves", "--store", "quiet", *CELL, "-o", "curves.svg")
    assert status == 0, err
    assert "LHI mean, L = 1, n = 3" in (tmp_path / "curves.svg").read_text()
    status, _, err = ithbit("verify", *runs, "--store", "quiet", "--device", "cpu")
    assert status in (0, 1), err  # 1: solved on held-out examples, and wrong on another input
    assert all((tmp_path / "quiet" / run / "verification.json").is_file() for run in runs)
    status, _, err = ithbit("report", *read, "-o", "page.html")
    assert status == 0, err
    assert '"mean":"mean"' in (tmp_path / "page.html").read_text()
    assert "no finished run of a cell that the paper has" in ithbit("compare", *read)[2]
    for command in (("status",), ("export", "-o", "tables")):
        status, _, err = ithbit(*command, "--store", "quiet")
        assert status == 0, err
    assert ithbit("params", "lhi", "mean", "--n", 3)[0] == 0
    assert ithbit("sweep", sweep, "--dry-run", "--store", "new", "--device", "cpu")[0] == 0


@pytest.mark.parametrize("family", ["mean", "layers.py:Mine"])
def test_theory_has_a_sentence_for_it(mean: None, ithbit: Ithbit, family: str) -> None:
    for command in (
        ("bound", "rhi", family),
        ("bound", "rhi", family, "--model", "trained"),
        ("complexity", family),
        ("verdict", "rhi", family),
        ("certify", "rhi", family, "--n", 4),
        ("explain", "rhi", family, "--bits", "10", "--index", 1),
    ):
        status, _, err = ithbit(*command)
        assert (status, err.count("\n")) == (2, 1)
        assert f"no theory for the family {family!r}" in err
    assert ithbit("verdict")[0] == 0
    assert group("rhi", family, 3) == "own layer"


def test_kernels_and_references_have_a_sentence_for_it(mean: None, triton: None) -> None:
    from ithbit.errors import IthbitError
    from ithbit.kernels.step import refusal
    from ithbit.reference.models import build

    model = ModelSpec("rhi", "mean", n_bits=4)
    assert refusal(model) == "there are no kernels for the family mean"
    with pytest.raises(IthbitError, match="there is no reference model for the family mean"):
        build(model)


@pytest.mark.parametrize("name", FAMILIES)
def test_theory_knows_every_family_that_has_a_formal_counterpart(name: str) -> None:
    family = FAMILIES[name]
    assert family.formal is not None
    arch = architecture(family.formal)
    assert (arch.attention, arch.causal) == (family.attention, family.causal)
    assert architecture(name, "trained").kind == family.kind
    for task, least in family.min_layers.items():
        assert (least is None) or construct(task, family.formal, 4).depth == least
