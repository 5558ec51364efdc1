"""An empty path is refused: it would mean the current folder."""

import inspect
from pathlib import Path

import pytest

import ithbit as package
from ithbit.errors import SpecError

FUNCTIONS = {
    name: function
    for name in package.__all__
    if inspect.isfunction(function := getattr(package, name))
    and "store" in inspect.signature(function).parameters
}
COMMANDS = {
    "train": ("rhi", "gru"),
    "sweep": ("smoke",),
    "status": (),
    "table": ("main",),
    "compare": (),
    "report": (),
    "export": (),
    "verify": ("--all",),
    "merge": ("other",),
    "explore": ("x",),
    "probe": ("lstm",),
    "capacity": ("rhi", "gru"),
    "demo": (),
}


def empty(folder: Path) -> bool:
    return not any(folder.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_of_every_command(ithbit, tmp_path: Path, command: str) -> None:
    for given in ("", " "):
        status, out, err = ithbit(command, *COMMANDS[command], "--store", given)
        assert (status, out) == (2, "")
        assert (
            err
            == f"ithbit: store must name a file or folder, got {given!r}; the current one is .\n"
        )
    assert empty(tmp_path)


def test_of_outputs(ithbit, tmp_path: Path) -> None:
    for command in (
        ("report",),
        ("export",),
        ("explore", "x"),
        ("data", "rhi"),
        ("plot", "length"),
    ):
        status, _, err = ithbit(*command, "-o", "")
        assert status == 2, command
        assert "out must name a file or folder, got ''" in err
    assert empty(tmp_path)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_every_function(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    needed = [
        each.name
        for each in inspect.signature(FUNCTIONS[name]).parameters.values()
        if each.default is each.empty
    ]
    for given, said in (("", "must name a file or folder"), ("a\0b", "must be a path")):
        with pytest.raises(SpecError, match=f"store {said}"):
            FUNCTIONS[name](**dict.fromkeys(needed, "rhi") | {"store": given})
    assert empty(tmp_path)


def test_an_empty_variable_counts_as_none(ithbit, monkeypatch) -> None:
    monkeypatch.setenv("ITHBIT_STORE", "")
    assert "there is no store runs" in ithbit("status")[2]
    monkeypatch.setenv("ITHBIT_STORE", " ")
    assert "store must name a file or folder" in ithbit("status")[2]
