"""A run folder cannot make anyone run code: not from inside a store, nor from where the user did
not train."""

import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file
from tests.support.synthetic_store import Plan, write_run

import ithbit
from ithbit.errors import LayerError
from ithbit.models import classifier, layer_source, own_layer, recorded_layer
from ithbit.models.layer_source import find_layer
from ithbit.spec import CODE_DIGITS, ModelSpec, RunSpec
from ithbit.sweeps.executors.ledger import Ledger
from ithbit.verification.run_verification import verify_run

EVIL = """
import pathlib
pathlib.Path({trace!r}).write_text("owned")
import torch
class Mine(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.map = torch.nn.Linear(width, width)
    def forward(self, x):
        return self.map(x)
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file that is there once the code of the layer has run."""
    return tmp_path / "trace"


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Knows no layers, as another process would."""
    for known in ("_registered", "_given_sources", "_recorded"):
        monkeypatch.setattr(layer_source, known, {}, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    own_layer.stacking_obstacle.cache_clear()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)


def code_of(text: str, name: str = "Mine") -> str:
    return hashlib.sha256(text.encode() + name.encode()).hexdigest()[:CODE_DIGITS]


def foreign(store: Path, text: str, source: str, name: str = "Mine") -> Path:
    """A finished run whose records all agree that its layer is at that source."""
    model = ModelSpec("lhi", "evil.py:Mine", 2, d_model=4, code=code_of(text, name))
    folder = write_run(store, Plan(RunSpec(model, 0), False, 0.75, 5))
    gru = classifier.init(ModelSpec("lhi", "gru", 2, d_model=4), 0)
    save_file(
        {name: value for name, value in gru.items() if not name.startswith("blocks")}
        | {
            "blocks.0.map.weight": gru["embed"].new_zeros(4, 4),
            "blocks.0.map.bias": gru["embed"].new_zeros(4),
        },
        folder / "weights.safetensors",
    )
    origin = {"schema": 1, "family": model.family, "code": model.code, "source": source}
    (folder / "layer.json").write_text(json.dumps(origin))
    return folder


def point(folder: Path, source: str) -> None:
    """Change where a run folder says that its layer is."""
    file = folder / "layer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"source": source}))


def test_the_attack_would_work_from_where_the_user_trained(tmp_path: Path, trace: Path) -> None:
    """All records are in order: what refuses the other places is where the file is."""
    text = EVIL.format(trace=str(trace))
    file = tmp_path / "elsewhere" / "evil.py"
    file.write_text(text)
    foreign(tmp_path / "store", text, f"{file}:Mine")
    found = ithbit.verify(all_runs=True, store="store", device="cpu")
    assert (len(found), found.set_aside, trace.exists()) == (1, [], True)


PLACES = {
    "in the run folder": lambda store, folder: folder / "layer.py",
    "in the store": lambda store, folder: store / "evil.py",
    "below the store": lambda store, folder: store / "probe" / "x" / "evil.py",
    "in another store": lambda store, folder: store.parent / "other" / "x" / "evil.py",
    "behind a link": lambda store, folder: store.parent / "elsewhere" / "link" / "evil.py",
    "around the corner": lambda store, folder: store.parent / "elsewhere" / ".." / "store" / "e.py",
    "relative": lambda store, folder: Path("elsewhere/evil.py"),
    "relative, in the store": lambda store, folder: Path("store/evil.py"),
}


@pytest.mark.parametrize("place", PLACES)
def test_code_is_not_run_from_there(tmp_path: Path, trace: Path, place: str) -> None:
    store, text = tmp_path / "store", EVIL.format(trace=str(trace))
    write_run(tmp_path / "other", Plan(RunSpec(ModelSpec("lhi", "gru", 2), 0), False, 0.75, 5))
    folder = foreign(store, text, "x.py:Mine")
    (tmp_path / "elsewhere" / "link").symlink_to(store, target_is_directory=True)
    file = PLACES[place](store, folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    point(folder, f"{file}:Mine")
    found = ithbit.verify(all_runs=True, store=store, device="cpu")
    assert len(found.set_aside) == 1
    assert folder.name in found.set_aside[0]
    assert "layer.json names" in found.set_aside[0]
    with pytest.raises(LayerError, match=r"layer\.json names"):
        ithbit.load(folder, store=store)
    assert not trace.exists()
    # Whoever names it, runs it.
    assert len(ithbit.verify(all_runs=True, store=store, device="cpu", layer=f"{file}:Mine")) == 1
    assert trace.exists()


@pytest.mark.parametrize("module", ["store.probe.evil", "other.pack.evil", "other.pack"])
def test_neither_as_a_module(tmp_path: Path, trace: Path, monkeypatch, module: str) -> None:
    """Finding a module imports no package around it."""
    store, text = tmp_path / "store", EVIL.format(trace=str(trace))
    write_run(tmp_path / "other", Plan(RunSpec(ModelSpec("lhi", "gru", 2), 0), False, 0.75, 5))
    for folder in (store / "probe", tmp_path / "other" / "pack"):
        folder.mkdir(parents=True)
        for name in ("evil", "__init__"):
            (folder / f"{name}.py").write_text(text)
    foreign(store, text, f"{module}:Mine")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = ithbit.verify(all_runs=True, store=store, device="cpu")
    assert "a file inside a store" in found.set_aside[0]
    assert not trace.exists()
    from ithbit.models.user_code import module_file

    assert module_file(module).name in ("evil.py", "__init__.py")
    assert not trace.exists()


@pytest.mark.parametrize("name", ["evil", "pack.evil", "elsewhere.evil"])
@pytest.mark.parametrize("first", [True, False])
def test_neither_as_a_module_of_this_folder(
    tmp_path: Path, trace: Path, monkeypatch, name: str, first: bool
) -> None:
    """As in an archive that holds a store and a module beside it, unpacked and entered; `python -m`
    looks there first. Nor where another place has a module of that name."""
    text = EVIL.format(trace=str(trace))
    file = tmp_path / "archive" / f"{name.replace('.', '/')}.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    (tmp_path / "elsewhere" / "evil.py").write_text("Mine = None\n")
    store = tmp_path / "archive" / "results" / "store"
    foreign(store, text, f"{name}:Mine")
    monkeypatch.chdir(tmp_path / "archive")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    if first:
        monkeypatch.syspath_prepend(tmp_path / "archive")
    found = ithbit.verify(all_runs=True, store="results/store", device="cpu")
    assert len(found.set_aside) == 1
    assert not trace.exists()
    if name != "evil":
        assert "a module that only this folder may have" in found.set_aside[0]
        assert first or str(tmp_path / "archive") not in sys.path
    if name == "pack.evil" and not first:  # an installed one is what the user trained
        monkeypatch.syspath_prepend(file.parents[1])
        monkeypatch.chdir(tmp_path)
        assert len(ithbit.verify(all_runs=True, store=store, device="cpu")) == 1
        assert trace.exists()


def test_a_store_is_no_place_to_import_from(tmp_path: Path, trace: Path, monkeypatch) -> None:
    """Else whatever is imported later could come from there."""
    store, text = tmp_path / "store", EVIL.format(trace=str(trace))
    foreign(store, text, "pack.evil:Mine")
    (store / "pack").mkdir()
    (store / "pack" / "evil.py").write_text(text)
    monkeypatch.chdir(store)
    found = ithbit.verify(all_runs=True, store=".", device="cpu")
    assert "this folder is a store" in found.set_aside[0]
    assert str(store) not in sys.path
    assert not trace.exists()


def test_a_stray_run_folder_above_is_named(tmp_path: Path, trace: Path) -> None:
    """It makes everything below it a store, which nobody would guess."""
    text = EVIL.format(trace=str(trace))
    file = tmp_path / "elsewhere" / "evil.py"
    file.write_text(text)
    foreign(tmp_path / "store", text, f"{file}:Mine")
    (tmp_path / "spec.json").write_text("{}")
    found = ithbit.verify(all_runs=True, store="store", device="cpu")
    assert f"({str(tmp_path)!r} is or holds a run folder)" in found.set_aside[0]
    assert not trace.exists()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "store", "", "")
    (tmp_path / "elsewhere" / "loop.py").symlink_to("loop.py")
    (tmp_path / "elsewhere" / "folder.py").mkdir()
    os.mkfifo(tmp_path / "elsewhere" / "fifo.py")
    for name in ("loop.py", "folder.py", "fifo.py", "\0.py", "x" * 9999 + ".py"):
        point(folder, f"{tmp_path}/elsewhere/{name}:Mine")
        assert len(ithbit.verify(all_runs=True, store="store", device="cpu").set_aside) == 1, name
    for source in ("", "Mine", ":", ".x:Mine", "a..b:Mine", "a\0b:Mine", "torch:no", "fla:no"):
        point(folder, source)
        assert len(ithbit.verify(all_runs=True, store="store", device="cpu").set_aside) == 1, source


def test_a_module_of_python_is_no_layer(tmp_path: Path) -> None:
    text = Path(os.__file__).read_text()
    foreign(tmp_path / "store", text, "os:_exit", "_exit")
    found = ithbit.verify(all_runs=True, store="store", device="cpu")
    assert "which is no layer but Python's own module" in found.set_aside[0]


def test_the_digest_is_checked_before_anything_runs(
    tmp_path: Path, trace: Path, monkeypatch
) -> None:
    text = EVIL.format(trace=str(trace))
    for name in ("evil.py", "pack/evil.py", "pack/__init__.py"):
        file = tmp_path / "elsewhere" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text + "# changed\n")
    folder = foreign(tmp_path / "store", text, "")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for source in (f"{tmp_path}/elsewhere/evil.py:Mine", "elsewhere.pack.evil:Mine"):
        point(folder, source)
        found = ithbit.verify(all_runs=True, store=tmp_path / "store", device="cpu")
        assert "has changed" in found.set_aside[0]
        assert not trace.exists()


@pytest.mark.parametrize("source", ["{}/elsewhere/evil.py:Mine", "elsewhere.evil:Mine"])
def test_what_runs_is_what_was_read(tmp_path: Path, trace: Path, source: str) -> None:
    file, harmless = tmp_path / "elsewhere" / "evil.py", EVIL.format(trace=str(tmp_path / "other"))
    file.write_text(harmless)
    layer = find_layer(source.format(tmp_path))
    file.write_text(EVIL.format(trace=str(trace)))
    try:
        layer.build(4)
    finally:
        sys.modules.pop("elsewhere.evil", None)
    assert not trace.exists()
    assert (tmp_path / "other").exists()


def test_a_job_list_in_a_store_tells_nothing(tmp_path: Path, trace: Path) -> None:
    store, text = tmp_path / "store", EVIL.format(trace=str(trace))
    (store / ".jobs").mkdir(parents=True)
    (store / "evil.py").write_text(text)
    folder = foreign(store, text, f"{store}/evil.py:Mine")
    layers = {code_of(text): f"{store}/evil.py:Mine"}
    record = {"schema": 1, "device": "cpu", "tasks": [], "layers": layers}
    (store / ".jobs" / "00001-0.json").write_text(json.dumps(record))
    assert Ledger(store).batches()[0].layers == layers
    with pytest.raises(LayerError, match="a file inside a store"):
        verify_run(folder, ithbit.engine.device.choose_device("cpu"))
    assert not trace.exists()


def test_a_layer_that_fails_on_an_input_does_not_stop_the_others(tmp_path: Path) -> None:
    text = EVIL.format(trace=str(tmp_path / "trace")).replace(
        "return self.map(x)", "return self.map(x) if len(x) in (1, 3, 31, 32, 256) else 1 / 0"
    )
    file = tmp_path / "elsewhere" / "evil.py"
    file.write_text(text)
    folder = foreign(tmp_path / "store", text, f"{file}:Mine")
    model = ModelSpec("lhi", "gru", 2, d_model=4)
    for seed in range(2):
        run = replace(RunSpec(model, 0), seed=seed)
        other = write_run(tmp_path / "store", Plan(run, False, 0.75, 5))
        save_file(classifier.init(model, 0), other / "weights.safetensors")
    found = ithbit.verify(all_runs=True, store="store", device="cpu")
    assert (len(found), len(found.set_aside)) == (2, 1)
    assert folder.name in found.set_aside[0]


PROGRAM = """
import pathlib
def main():
    pathlib.Path({trace!r}).write_text("owned")
class Options:
    def __init__(self, width):
        main()
"""


@pytest.mark.parametrize("name", ["main", "Options"])
def test_what_is_no_layer_in_an_installed_module_is_not_called(
    tmp_path: Path, trace: Path, monkeypatch, name: str
) -> None:
    """Else a record names a program that runs what is in the current folder, as `pytest` does."""
    text = PROGRAM.format(trace=str(trace))
    (tmp_path / "elsewhere" / "prog").mkdir()
    for file in ("tool", "__main__"):
        (tmp_path / "elsewhere" / "prog" / f"{file}.py").write_text(text)
    for known in ("prog", "prog.tool"):
        monkeypatch.delitem(sys.modules, known, raising=False)
    folder = foreign(tmp_path / "store", text, f"prog.tool:{name}", name)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    found = ithbit.verify(all_runs=True, store="store", device="cpu")
    assert "which is no class of torch.nn.Module" in found.set_aside[0]
    assert not trace.exists()
    point(folder, f"prog.__main__:{name}")
    monkeypatch.setattr(layer_source, "_registered", {})
    found = ithbit.verify(all_runs=True, store="store", device="cpu")
    assert "a program and no layer" in found.set_aside[0]
    assert "prog.__main__" not in sys.modules
    layer = f"prog.tool:{name}"
    ithbit.verify(all_runs=True, store="store", device="cpu", layer=layer)
    assert trace.exists()  # whoever names it, calls it


def test_a_file_of_an_installed_program_is_not_run(tmp_path: Path, trace: Path) -> None:
    folder = foreign(tmp_path / "store", EVIL.format(trace=str(trace)), "")
    for place in ("lib/python3.11", "python3", "x/site-packages/pack", "dist-packages"):
        file = tmp_path / place / "evil.py"
        file.parent.mkdir(parents=True)
        file.write_text(EVIL.format(trace=str(trace)))
        (tmp_path / "elsewhere" / "link.py").unlink(missing_ok=True)
        (tmp_path / "elsewhere" / "link.py").symlink_to(file)
        for path in (file, tmp_path / "elsewhere" / "link.py"):
            point(folder, f"{path}:Mine")
            found = ithbit.verify(all_runs=True, store="store", device="cpu")
            assert "a file of an installed program" in found.set_aside[0]
    assert not trace.exists()


@pytest.mark.parametrize("first", [True, False])
def test_fla_of_this_folder_is_not_imported(tmp_path: Path, monkeypatch, first: bool) -> None:
    """Its layers are known by name, but a folder may have a package of that name."""
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", ".")])
    (tmp_path / "fla").mkdir()
    (tmp_path / "fla" / "__init__.py").write_text("")
    if first:
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(LayerError, match="a module that only this folder may have"):
            recorded_layer.learn_recorded("0" * 12, "fla:GLA", tmp_path / "store")
    else:
        recorded_layer.learn_recorded("0" * 12, "fla:GLA", tmp_path / "store")
