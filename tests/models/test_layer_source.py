"""Loading and building layers: every way it can go wrong has its sentence."""

import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.support.paths import BAD_LAYERS

from ithbit.errors import LayerError
from ithbit.models import layer_source
from ithbit.models.adapters import ADAPTERS, untuned
from ithbit.models.layer_source import (
    READY,
    family_of,
    find_layer,
    is_session_only,
    layer_for,
    layer_of,
    load_layer,
    register_sources,
    sources,
)
from ithbit.spec import ModelSpec, RunSpec


def test_the_width_is_given_by_position_by_name_or_not_at_all() -> None:
    assert load_layer(f"{BAD_LAYERS}:StateOfThree").build(7).enter.in_features == 7
    assert load_layer(f"{BAD_LAYERS}:keyword").build(4).in_features == 4
    assert load_layer(f"{BAD_LAYERS}:FixedWidth").build(3).map.in_features == 3
    assert load_layer("torch.nn:Identity").build(3)(torch.ones(1)).item() == 1


def test_weights_depend_on_the_seed_alone() -> None:
    layer = load_layer("lstm")
    torch.manual_seed(5)
    first = layer.build(4, seed=1).cell.weight_ih_l0
    state = torch.random.get_rng_state()
    assert torch.equal(layer.build(4, seed=1).cell.weight_ih_l0, first)
    assert not torch.equal(layer.build(4, seed=2).cell.weight_ih_l0, first)
    assert torch.equal(torch.random.get_rng_state(), state)  # the user's generator is left alone


def test_the_digest_follows_the_code(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import torch\nMine = torch.nn.Identity\n")
    before = load_layer(f"{path}:Mine").digest
    path.write_text("import torch\nMine = torch.nn.Identity  # changed\n")
    assert load_layer(f"{path}:Mine").digest != before
    assert layer_of(torch.nn.Identity).digest == layer_of(torch.nn.Identity).digest is not None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nothing", "'nothing' is not a layer; give PATH.py:Factory"),
        ("torch:LSTM", "there is no ready-made layer torch:LSTM; there are torch:lstm, torch:rnn"),
        ("missing.py:Layer", r"there is no file missing\.py"),
        (f"{BAD_LAYERS}:Missing", "has no Missing; it has AlwaysDrops, .*, FailsToBuild"),
        (f"{BAD_LAYERS}:number", "number in .* is int, which is not callable"),
        ("no_such_package.layers:Mine", "the module no_such_package.layers cannot be imported"),
    ],
)
def test_what_cannot_be_loaded(text: str, sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        load_layer(text)


def test_imports_from_beside_the_file_and_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text("import torch\nMine = torch.nn.Identity\n")
    (tmp_path / "user_layers.py").write_text("from beside_it import Mine\n")
    monkeypatch.chdir(tmp_path)
    for text in (f"{tmp_path / 'user_layers.py'}:Mine", "user_layers:Mine"):
        assert isinstance(load_layer(text).build(3), torch.nn.Identity)


def test_a_file_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    for code, said in (("1 / 0", "ZeroDivisionError"), ("import sys; sys.exit()", "SystemExit")):
        path.write_text(code)
        with pytest.raises(LayerError, match=f"cannot be imported: {said}"):
            load_layer(f"{path}:Mine")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("needs_two", r"needs_two needs arguments \(width, heads\); wrap it"),
        ("gives_a_number", r"must return a torch\.nn\.Module, got int"),
        ("Exits", "Exits cannot be built at width 4: SystemExit: 7"),
        ("FailsToBuild", "cannot be built at width 4: ValueError: heads must divide the width"),
    ],
)
def test_what_cannot_be_built(name: str, sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        load_layer(f"{BAD_LAYERS}:{name}").build(4)


def test_a_factory_must_be_callable() -> None:
    with pytest.raises(LayerError, match="a factory must be callable, got int"):
        layer_of(7)  # type: ignore[arg-type]
    for name in (None, "mine"):
        with pytest.raises(LayerError, match="got an instance of Linear; give the class, or a fun"):
            layer_of(torch.nn.Linear(4, 4), name)


def test_adapters_are_known_by_their_families_and_by_short_names() -> None:
    assert [f"torch:{name}" for name in READY] == list(ADAPTERS)
    for name in READY:
        assert find_layer(name) == find_layer(f"torch:{name}")
    assert find_layer("fla:GLA").family == "fla:GLA"


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_keep_the_shape(name: str) -> None:
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    assert load_layer(name).build(6)(x).shape == x.shape


@pytest.mark.skipif(torch.cuda.is_available(), reason="says something else with a GPU")
def test_fla_without_a_gpu_is_refused() -> None:
    with pytest.raises(LayerError, match="fla:GLA needs a CUDA GPU"):
        load_layer("fla:GLA").build(16)


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("kind", ["GLA", "DeltaNet", "GatedDeltaNet", "RWKV7", "RetNet", "HGRN2"])
def test_fla_layers_run_or_say_why_not(kind: str) -> None:
    from ithbit.contract.layer_facts import layer_facts, usable

    device = torch.device("cuda")
    try:
        layer = load_layer(f"fla:{kind}")
        module = usable(layer, 16, 10, device)
    except LayerError as error:
        pytest.skip(str(error))  # a kernel that refuses these sizes, in its own words
    assert layer_facts(layer, module, 16, 10).leak is None


LAYER = """
import torch

class Mine(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.map = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.map(x)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(LAYER)
    return path


@pytest.fixture
def as_if_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """No layer is known, as in a process that has just begun."""
    for known in ("_registered", "_given_sources"):
        monkeypatch.setattr(layer_source, known, {})


def model_of(path: Path) -> ModelSpec:
    family, code = family_of(f"{path}:Mine")
    return ModelSpec("rhi", family, 3, d_model=4, code=code)


def test_where_a_file_lies_is_no_part_of_its_identity(tmp_path: Path, mine: Path) -> None:
    other = tmp_path / "elsewhere" / "mine.py"
    other.parent.mkdir()
    other.write_bytes(mine.read_bytes())
    assert family_of(f"{mine}:Mine") == family_of("elsewhere/mine.py:Mine", folder=tmp_path)
    assert family_of(f"{mine}:Mine")[0] == "mine.py:Mine"
    renamed = mine.rename(tmp_path / "yours.py")
    assert family_of(f"{renamed}:Mine") == ("yours.py:Mine", family_of(f"{other}:Mine")[1])


def test_naming_a_layer_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text("raise RuntimeError('was run')\nMine = 1\n")
    family, code = family_of(f"{path}:Mine")
    layer = layer_for(ModelSpec("rhi", family, 3, code=code))
    with pytest.raises(LayerError, match="cannot be imported: RuntimeError: was run"):
        layer.build(4)


def test_what_was_named_is_what_is_run(mine: Path) -> None:
    """Although the file was changed in between."""
    model = model_of(mine)
    mine.write_text("raise RuntimeError('changed')\n")
    assert layer_for(model).build(4).map.in_features == 4


@pytest.mark.usefixtures("as_if_new")
def test_another_process_is_given_the_location_of_the_file(mine: Path, monkeypatch) -> None:
    run = RunSpec(model_of(mine), seed=0)
    given = sources([run, RunSpec(ModelSpec("rhi", "gru", 3), seed=0)])
    assert given == {run.model.code: f"{mine}:Mine"}
    monkeypatch.setattr(layer_source, "_registered", {})
    with pytest.raises(LayerError, match=r"the code of mine\.py:Mine \(.*\) is not known here"):
        layer_for(run.model)
    register_sources(given)
    assert sources([run]) == given
    assert layer_for(run.model).build(4).map.in_features == 4


@pytest.mark.usefixtures("as_if_new")
def test_code_that_does_not_fit_is_not_run(mine: Path, monkeypatch) -> None:
    run = RunSpec(model_of(mine), seed=0)
    given = sources([run])
    monkeypatch.setattr(layer_source, "_registered", {})
    register_sources(given)
    mine.write_text("raise RuntimeError('was run')\n")
    with pytest.raises(LayerError, match=r"mine\.py:Mine has changed: .* but this run has"):
        layer_for(run.model)
    mine.unlink()
    with pytest.raises(LayerError, match=r"cannot be loaded: there is no file .*; put the file"):
        layer_for(run.model)


def test_a_class_of_a_file_is_that_file(mine: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(mine.parent)
    import mine as module  # type: ignore[import-not-found]

    layer = layer_of(module.Mine)
    assert (layer.family, layer.code) == family_of(f"{mine}:Mine")
    assert layer.source == f"{mine}:Mine"
    assert layer.factory is module.Mine
    stamp = mine.stat().st_mtime_ns
    cached = Path(module.__spec__.cached)
    if cached.exists():  # else Python has nothing to compare with
        import os

        os.utime(mine, ns=(stamp + 10**10, stamp + 10**10))
        with pytest.raises(LayerError, match="has changed since it was imported; reload it"):
            layer_of(module.Mine)


def test_a_layer_without_a_file_is_another_layer_each_time() -> None:
    def mine(width: int) -> torch.nn.Module:
        return torch.nn.Identity()

    layers = [layer_of(mine), layer_of(mine)]
    assert layers[0].family == "python:mine"
    assert layers[0].code != layers[1].code  # what it refers to may have changed in between
    assert layers[0].source is None
    assert b"torch.nn.Identity()" in layers[0].text
    run = RunSpec(ModelSpec("rhi", layers[0].family, 3, code=layers[0].code), 0)
    assert is_session_only([run])
    assert sources([run]) == {}
    assert layer_for(run.model).factory is mine
    assert layer_of(partial(torch.nn.Linear, out_features=2)).text == b""  # has no source


def test_a_script_that_trains_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(LAYER + "\nimport ithbit\nithbit.train('rhi', Mine, n=2)\n")
    with pytest.raises(LayerError, match=r"script\.py trains or probes while it is imported"):
        load_layer(f"{path}:Mine")


def test_names_and_stores_need_no_torch(mine: Path) -> None:
    code = f"""
        import sys
        from ithbit.models.layer_source import family_of
        from ithbit.sweeps.select import read_sweep
        family_of({str(mine) + ":Mine"!r})
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_kernels_defined_untuned_have_the_smallest_configuration() -> None:
    triton = pytest.importorskip("triton")

    def kernel(x):
        pass

    sizes = [triton.Config({"BLOCK": size}, num_warps=4) for size in (64, 16, 32)]

    def tuned():
        return triton.autotune(configs=sizes, key=[])(triton.jit(kernel))

    with untuned():
        assert [config.kwargs for config in tuned().configs] == [{"BLOCK": 16}]
    assert len(tuned().configs) == 3
