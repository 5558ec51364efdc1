"""A family that is added goes through every command; nothing else needs to know of it.

Added as a user of the package would: an entry of `FAMILIES`, and its functions in the registry of
models.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.support.families import PAPER_FAMILIES
from torch import Tensor

from ithbit import load
from ithbit.cli import app
from ithbit.families import FAMILIES, Family, group
from ithbit.models.classifier import BLOCKS, Blocks
from ithbit.models.stacked import Params, Stream, linear
from ithbit.reporting.tables.main import TABLES
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
CSV = ("--format", "csv")
THEORY = [
    ("bound", "rhi", "mean"),
    ("bound", "rhi", "mean", "--model", "trained"),
    ("complexity", "mean"),
    ("verdict", "rhi", "mean"),
    ("construct", "rhi", "mean", "--n", 4),
    ("certify", "rhi", "mean", "--n", 4),
    ("explain", "rhi", "mean", "--bits", "10", "--index", 1),
]
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


# The commands that name no family and read no run; the rest are called below.
NO_FAMILY = {"demo", "sample", "data", "score", "check-certificate", "bench"}


@pytest.fixture
def called(ithbit: Ithbit) -> Iterator[Ithbit]:
    """Runs a command; at the end, every command must have been run or be known to need no family.

    So a command that is added has to be tried with a new family too.
    """
    names = set(NO_FAMILY)

    def call(*arguments: object) -> tuple[int, str, str]:
        names.add(str(arguments[0]))
        return ithbit(*arguments)

    yield call
    assert names == {command.name for command in app.registered_commands}


@pytest.mark.usefixtures("without_figures")
def test_it_goes_through_every_command(mean: None, called: Ithbit, tmp_path: Path) -> None:
    def works(*command: object) -> str:
        status, out, err = called(*command)
        assert status == 0, (command, err)
        return out

    def refuses(*command: object, why: str) -> None:
        status, _, err = called(*command)
        assert (status, err.count("\n")) == (2, 1), (command, err)
        assert why in err

    here = ("--device", "cpu", "--workers", 1)
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(SWEEP)
    works("sweep", sweep, "--dry-run", "--store", "new", "--device", "cpu")
    works("sweep", sweep, "--store", "quiet", *here)
    runs = [path.parent.name for path in (tmp_path / "quiet").glob("*mean*/result.json")]
    assert len(runs) == 2  # rotary is left out: it does not take that
    # With several workers asked for too: a family added to this process is trained in it.
    one_bit = ("lhi", "mean", "--n", 1, "--max-epochs", 1, "--seeds", "0-1")
    works("train", *one_bit, "--store", "short", "--device", "cpu", "--workers", 2)
    works("params", "lhi", "mean", "--n", 3)
    works("status", "--store", "quiet")
    works("merge", "short", "--store", "copy")

    status, out, err = called("verify", *runs, "--store", "quiet", "--device", "cpu")
    assert status in (0, 1), err  # 1: solved on held-out examples, and wrong on another input
    assert all((tmp_path / "quiet" / run / "verification.json").is_file() for run in runs)
    assert "no bounds for such a model" in works("verify", "--all", "--store", "short", "--prove")
    loaded = load(tmp_path / "quiet" / runs[0])
    assert loaded(torch.tensor([1, 0, 1]), 2).shape == ()
    refuses("explore", runs[0], "--store", "quiet", why="the family mean; the page runs only")

    read = ("--store", "quiet", "--settings", "any")
    for name in TABLES:
        out = works("table", name, *read, "--format", "csv")
        assert ("\nLHI,mean,1,–," in out) == (name in ("main", "accuracy"))
    for figure in ("successes", "accuracy"):
        works("plot", figure, *read, "-o", "f.svg")
        assert "mean" in (tmp_path / "f.svg").read_text()
    works("plot", "curves", "--store", "quiet", *CELL, "-o", "curves.svg")
    assert "LHI mean, L = 1, n = 3" in (tmp_path / "curves.svg").read_text()
    works("report", *read, "-o", "page.html")
    assert '"mean":"mean"' in (tmp_path / "page.html").read_text()
    refuses("compare", *read, why="no finished run of a cell that the paper has")
    works("export", "--store", "quiet", "-o", "tables")
    assert "LHI,mean,1" in works("table", "main", "--store", "tables", "--settings", "any", *CSV)

    refuses("probe", "mean", why="'mean' is a family, not a layer")
    status, out, _ = called("check", "mean")
    assert (status, "'mean' is not a layer" in out) == (2, True)
    cell = ("lhi", "mean", "--width", 4, "--start", 1, "--most-n", 1, "--seeds", "0-1")
    works("capacity", *cell, "--need", 1, "--max-epochs", 1, "--lr", 0.003, "--store", "cap", *here)
    for command in THEORY:
        refuses(*command, why="no theory for the family 'mean'")


@pytest.mark.parametrize("family", ["mean", "layers.py:Mine"])
def test_theory_has_a_sentence_for_it(mean: None, ithbit: Ithbit, family: str) -> None:
    for name, *command in THEORY:
        command = [name, *(family if argument == "mean" else argument for argument in command)]
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


@pytest.mark.parametrize("name", PAPER_FAMILIES)
def test_theory_knows_every_family_that_has_a_formal_counterpart(name: str) -> None:
    family = FAMILIES[name]
    assert family.formal is not None
    arch = architecture(family.formal)
    assert (arch.attention, arch.causal) == (family.attention, family.causal)
    assert architecture(name, "trained").kind == family.kind
    for task, least in family.min_layers.items():
        assert (least is None) or construct(task, family.formal, 4).depth == least
