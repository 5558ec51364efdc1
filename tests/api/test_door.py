"""The Python door: every public name is there and has an example, every command is a function."""

import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import ithbit
from ithbit.cli import app
from ithbit.cli.options import OPTIONS

HOMES = ithbit._HOME
PACKAGES = sorted(
    path.parent.name
    for path in Path(ithbit.__file__).parent.glob("*/__init__.py")
    if path.parent.name in ithbit.__all__
)
COMMANDS = {name.replace("-", "_"): each for name, each in get_command(app).commands.items()}
# What only Python has: a whole protocol, a callback, bars that may be left out.
PYTHON_ONLY = {"protocol", "watch", "progress", "method", "histories", "dtype", "library", "name"}
# What only the command line has: how to print, and when to end with status 1.
SHELL_ONLY = {"as_json", "trace", "complete"}


def public(name: str):
    """The function or class itself, whatever sub-package has its name."""
    module = __import__(f"ithbit.{HOMES[name]}", fromlist=[name])
    return getattr(module, name)


@pytest.mark.parametrize("name", ithbit.__all__)
def test_every_public_name_has_an_example(name) -> None:
    found = public(name)
    assert ">>>" in (found.__doc__ or ""), f"{name} has no example for the doctests to run"
    assert found.__doc__.splitlines()[0].endswith((".", ":"))
    # The doctests run where the thing is defined.
    assert found.__module__ == f"ithbit.{HOMES[name]}"


def test_every_command_is_a_function_and_the_other_way_round() -> None:
    functions = {name for name in ithbit.__all__ if inspect.isfunction(public(name))}
    assert COMMANDS.keys() - functions == {"demo", "bench"}
    assert functions - COMMANDS.keys() == {"load", "runs"}


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"demo", "bench"}))
def test_a_command_has_the_functions_names_and_defaults(name) -> None:
    function = inspect.signature(public(name)).parameters
    options = {each.name: each for each in COMMANDS[name].params if each.name != "help"}
    assert function.keys() - options.keys() <= PYTHON_ONLY
    assert options.keys() - function.keys() <= SHELL_ONLY
    for key in function.keys() & options.keys():
        default = function[key].default
        if options[key].required:
            assert default is inspect.Parameter.empty or default is None
        elif default not in (None, inspect.Parameter.empty):
            forms = [default, [default], list(default) if isinstance(default, tuple) else default]
            assert str(options[key].default) in map(str, forms)


def test_the_defaults_of_the_whole_door_agree() -> None:
    """One name, one default, but for what a table or a bound means by it."""
    seen: dict[str, set[object]] = {}
    for name in COMMANDS.keys() - {"demo", "bench", "probe", "verdict", "bound", "plot", "status"}:
        for key, parameter in inspect.signature(public(name)).parameters.items():
            if parameter.default not in (inspect.Parameter.empty, None):
                seen.setdefault(key, set()).add(parameter.default)
    several = {key: values for key, values in seen.items() if len(values) > 1}
    assert several.keys() <= {"format", "out", "count"}
    assert seen["store"] == {"runs"}
    assert {"n", "layers", "width", "heads", "ff", "device", "kernels"} <= seen.keys()


def test_options_are_all_used() -> None:
    used = {key for name in ithbit.__all__ for key in _parameters(public(name))}
    assert OPTIONS.keys() <= used


def _parameters(found) -> list[str]:
    return list(inspect.signature(found).parameters) if inspect.isfunction(found) else []


@pytest.mark.parametrize("first", ["functions", "packages"])
def test_a_function_is_there_whatever_is_imported_first(first) -> None:
    """A sub-package of a function's name takes its place in `ithbit`, and must not."""
    root = Path(ithbit.__file__).parent
    inner = {name: min(root.joinpath(name).glob("[a-z]*.py")).stem for name in PACKAGES}
    imports = [f"import ithbit.{name}.{module}" for name, module in inner.items()]
    functions = ["import ithbit", *(f"ithbit.{name}" for name in PACKAGES)]
    program = functions + imports if first == "functions" else imports
    for name, module in inner.items():
        program += [
            f"ithbit.{name}.{module}",
            f"from ithbit import {name}",
            "try:",
            f"    {name}(**{{'nonsense': 1}})",
            "except TypeError as error:",
            "    print(error)",
        ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, check=True
    )
    said = done.stdout.splitlines()
    assert len(said) == len(PACKAGES)
    for name, text in zip(PACKAGES, said, strict=True):
        assert f"{name}() got an unexpected keyword argument 'nonsense'" in text


@pytest.mark.parametrize("name", PACKAGES)
def test_a_notebook_finds_the_parameters_of_a_function(name) -> None:
    __import__(f"ithbit.{name}")  # whose package then stands in its place
    assert inspect.signature(getattr(ithbit, name)) == inspect.signature(public(name))


@pytest.mark.parametrize("name", ithbit.__all__)
def test_another_process_can_have_a_function(name) -> None:
    """Also if its name is that of a sub-package, which by then is imported."""
    found = ithbit.__getattr__(name)
    assert pickle.loads(pickle.dumps(found)) is found


def test_a_wrong_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'ithbit' has no attribute 'trian'"):
        _ = ithbit.trian
