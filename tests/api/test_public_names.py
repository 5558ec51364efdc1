"""The Python API: every public name is there and has an example, every command is a function."""

import builtins
import inspect
import pickle
from typing import Any

import pytest
from tests.support.paths import ROOT
from typer.main import get_command

import ithbit
from ithbit.cli import app
from ithbit.cli.options import OPTIONS

HOMES = ithbit._HOME
COMMANDS = {name.replace("-", "_"): each for name, each in get_command(app).commands.items()}
# What only Python has: a whole protocol, a callback, bars that may be left out.
PYTHON_ONLY = {"protocol", "watch", "progress", "method", "histories", "dtype", "library", "name"}
# What only the command line has: how to print, and when to end with status 1.
SHELL_ONLY = {"as_json", "trace", "complete"}


def public(name: str):
    """The function or class itself, from the module that defines it."""
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
    assert functions - COMMANDS.keys() == {"assert_contract", "histories", "load", "runs"}


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


def test_the_defaults_of_the_public_functions_agree() -> None:
    """One name, one default, but for what a table or a bound means by it."""
    seen: dict[str, set[object]] = {}
    for name in COMMANDS.keys() - {"demo", "bench", "probe", "verdict", "bound", "plot", "status"}:
        for key, parameter in inspect.signature(public(name)).parameters.items():
            if parameter.default not in (inspect.Parameter.empty, None):
                seen.setdefault(key, set()).add(parameter.default)
    several = {key: values for key, values in seen.items() if len(values) > 1}
    assert several.keys() <= {"output_format", "out", "count", "seconds"}
    assert seen["store"] == {"runs"}
    assert {"n", "layers", "width", "heads", "ff", "device", "kernels"} <= seen.keys()


def test_options_are_all_used() -> None:
    used = {key for name in ithbit.__all__ for key in _parameters(public(name))}
    assert OPTIONS.keys() <= used


def _parameters(found) -> list[str]:
    return list(inspect.signature(found).parameters) if inspect.isfunction(found) else []


# Every keyword that a public function had under another name, with a call that gives it.
RENAMED = {
    "bound": ({"all": True}, {"all_routes": True}, ("rhi", "rnn")),
    "compare": ({"all": True}, {"all_cells": True}, ("results/paper",)),
    "table": ({"format": "csv"}, {"output_format": "csv"}, ("main",)),
}


@pytest.mark.parametrize("name", RENAMED)
def test_an_earlier_name_of_a_keyword_works_and_warns(name, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    old, new, positional = RENAMED[name]
    more = {"show": "published"} if name == "table" else {}
    with pytest.warns(DeprecationWarning, match=f"{name}: the keyword .* is deprecated") as caught:
        before = public(name)(*positional, **old, **more)
    assert caught[0].filename == __file__  # the caller's line, not ours
    assert str(before) == str(public(name)(*positional, **new, **more))
    with pytest.raises(TypeError, match="which are the same keyword"):
        public(name)(*positional, **old, **new)


@pytest.mark.parametrize(
    ("name", "positional", "old", "new"),
    [
        ("train", ("rhi", "gru"), "compile", "compiled"),
        ("sweep", ("smoke",), "compile", "compiled"),
        ("capacity", ("rhi", "gru"), "compile", "compiled"),
        ("export", (), "format", "output_format"),
        ("verify", (), "all", "all_runs"),
    ],
)
def test_functions_that_train_or_write_accept_the_earlier_names(name, positional, old, new) -> None:
    """Seen by a value of the wrong type, which is refused under the name of now."""
    with (
        pytest.warns(DeprecationWarning, match=f"{name}: the keyword '{old}' is deprecated"),
        pytest.raises(ithbit.IthbitError, match=rf"{new} must be .*, got \[\]"),
    ):
        public(name)(*positional, **{old: []})


@pytest.mark.parametrize("name", sorted(HOMES.keys()))
def test_no_parameter_has_the_name_of_a_builtin(name) -> None:
    assert not [each for each in _parameters(public(name)) if hasattr(builtins, each)]


@pytest.mark.parametrize("name", sorted(HOMES.keys()))
def test_every_function_says_what_it_returns(name) -> None:
    if inspect.isfunction(public(name)):
        returned = inspect.signature(public(name)).return_annotation
        assert returned not in (Any, "Any", inspect.Signature.empty)


@pytest.mark.parametrize("name", ithbit.__all__)
def test_another_process_can_have_a_function(name) -> None:
    found = ithbit.__getattr__(name)
    assert pickle.loads(pickle.dumps(found)) is found


def test_a_wrong_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'ithbit' has no attribute 'trian'"):
        _ = ithbit.trian
