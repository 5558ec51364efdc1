"""The typer application, and how an API function becomes one of its commands.

Typer reads a command's options from a function's signature. The API functions have every name, type
and default already, so `command` derives that signature instead of repeating 200 parameters: it
looks up the help in `options.py`, and `_FORMS` has, for a type that Python takes in several forms,
the one that a shell can give. Typer refuses a union that is missing there, whatever the command.
"""

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from ithbit import __version__
from ithbit.api.arguments import Layer, Seeds, check_path
from ithbit.api.trained import Run
from ithbit.cli.options import OPTIONS
from ithbit.display import Printable, json_text, say, show
from ithbit.errors import IthbitError
from ithbit.spec import RunSpec

# Types that the API takes in several forms, and the one form that the command line takes; a list is
# an option that may be repeated.
_PATHS: dict[Any, Any] = {  # as they were given: an empty path would become the current folder
    Path: str,
    Path | None: str | None,
    str | Path: str,
    str | Path | None: str | None,
}
_FORMS: dict[Any, Any] = _PATHS | {
    str | Layer: str,
    "str | Solution | TrainedSolution": str,
    "str | Layer | nn.Module | None": str | None,
    str | Path | Iterable[RunSpec]: str,
    str | Path | Iterable[RunSpec] | None: str | None,
    Seeds: str,
    Seeds | None: str | None,
    int | str | Iterable[int]: str,
    float | str | Iterable[float]: str,
    int | Iterable[int]: list[int],
    int | Iterable[int] | None: list[int] | None,
    str | Iterable[str]: list[str],
    str | Iterable[str] | None: list[str] | None,
    Run | Iterable[Run]: list[str],
    Run | Iterable[Run] | None: list[str] | None,
}
# Options whose word would shadow a builtin function in Python, where the parameter has another.
_SPELLINGS = {
    "all_cells": "all",
    "all_routes": "all",
    "all_runs": "all",
    "compiled": "compile",
    "output_format": "format",
}
_PATH = "PATH"  # how the help calls a path
_SHORT = {
    "n": "-n",
    "layers": "-L",
    "width": "-d",
    "out": "-o",
    "output_format": "-f",
    "position": "-k",
}
# Positional parameters of API functions become arguments, except these.
_OPTIONS_ALWAYS = ("store", "n", "variant", "layers")
# The commands by what a user is about to do, as the help lists them.
_GROUPS = {
    "Start here": ("demo",),
    "Check a layer or a model": ("check", "probe", "capacity", "data", "score"),
    "Train": ("train", "sweep", "status", "merge", "sample", "params"),
    "Verify what was trained": ("verify", "explore", "check-certificate"),
    "Theory": ("verdict", "bound", "complexity", "construct", "certify", "explain"),
    "Report": ("report", "table", "compare", "plot", "export"),
    "More": ("bench",),
}
# Parameters that are optional in Python but required on the command line.
_REQUIRED = {("certify", "family"), ("certify", "n"), ("explain", "family")}

AsJson = Annotated[bool, Option("--json", help="Print JSON on standard output.")]
Printer = Callable[..., None]


class _Flags:
    """Hides the type of flags in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    """One command."""


class _Group(_Flags, TyperGroup):
    """All commands, in the order of their groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for names in _GROUPS.values() for name in names]
        return sorted(self.commands, key=lambda name: (*order, name).index(name))


app = typer.Typer(
    name="ithbit",
    cls=_Group,
    help="Can a sequence model read the i-th bit? Prove it, train it, compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        say(f"ithbit {__version__}")
        raise typer.Exit


@app.callback()
def _ithbit(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None: ...


def command(
    function: Callable[..., Any], own: Mapping[str, Any] = {}, **fixed: Any
) -> Callable[[Printer], Printer]:
    """Make a command from an API function; the decorated function prints its result.

    The command has an option for each parameter listed in `own` or `OPTIONS`; `fixed` parameters
    are passed as given, and all others are available in Python only. The printer's parameters after
    the result are either options of the function with the same name or options of their own. The
    help is the function's docstring up to its example, then the printer's docstring.
    """
    definitions = OPTIONS | dict(own)
    options = {
        name: _option(parameter, definitions[name], (function.__name__, name) in _REQUIRED)
        for name, parameter in inspect.signature(function).parameters.items()
        if name in definitions and name not in fixed
    }

    def register(printer: Printer) -> Printer:
        printed = list(inspect.signature(printer).parameters.values())[1:]
        more = {
            each.name: each.replace(kind=each.KEYWORD_ONLY)
            for each in printed
            if each.name not in options
        }

        def run(**values: Any) -> None:
            for name, each in options.items():
                if each.annotation.__metadata__[0].metavar == _PATH and values[name] is not None:
                    check_path(name, values[name])
                    values[name] = Path(values[name])
            # A repeatable option that was not given is an empty list.
            arguments = {name: values[name] for name in options if values[name] != []}
            try:
                with redirect_stdout(sys.stderr):  # prints of a user's layer are not output
                    result = function(**arguments, **fixed)
            except IthbitError as error:
                if values.get("trace") and error.__cause__ is not None:
                    traceback.print_exception(error.__cause__)
                raise
            printer(result, **{each.name: values[each.name] for each in printed})

        both = (options | more).values()
        run.__signature__ = inspect.Signature(list(both))  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in both}
        name = function.__name__.replace("_", "-")
        panel = next((title for title, names in _GROUPS.items() if name in names), "More")
        words = _help(function, options, printer)
        app.command(name, cls=_Command, help=words, rich_help_panel=panel)(run)
        return printer

    return register


def _dashed(name: str) -> str:
    """A parameter's name as the command line spells it, without the leading dashes."""
    return _SPELLINGS.get(name, name).replace("_", "-")


def _option(parameter: inspect.Parameter, definition: Any, required: bool) -> inspect.Parameter:
    """An API parameter as an option or argument; `definition` is all of that, or only its help."""
    default = inspect.Parameter.empty if required else parameter.default
    form: Any = _FORMS.get(parameter.annotation, parameter.annotation)
    if isinstance(default, str | int | tuple) and form in (list[int], list[str]):
        default = list(default) if isinstance(default, tuple) else [default]
    dashed, option = _dashed(parameter.name), definition
    if isinstance(definition, str):
        by_position = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if by_position and parameter.name not in _OPTIONS_ALWAYS:
            option = Argument(help=definition)
        elif form is bool and default:
            option = Option(f" /--no-{dashed}", help=definition, show_default=False)
        else:
            short = [_SHORT[parameter.name]] if parameter.name in _SHORT else []
            option = Option(f"--{dashed}", *short, help=definition)
    if parameter.annotation in _PATHS:
        option.metavar = _PATH
        default = default if default in (None, parameter.empty) else str(default)
    annotation = Annotated[form, option]
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _help(function: Callable[..., Any], options: Mapping[str, Any], printer: Printer) -> str:
    """The prose of both docstrings, with the function's parameters written as options."""
    prose = re.split(r"\n\n(?:>>>|In Python)", inspect.cleandoc(function.__doc__ or ""))[0]
    for name in options:
        prose = prose.replace(f"`{name}`", f"--{_dashed(name)}")
    more = "" if printer in (print_result, print_or_json) else printer.__doc__
    text = f"{prose}\n\n{inspect.cleandoc(more)}" if more else prose
    # One line per paragraph, to wrap at any width: typer keeps line breaks.
    return "\n\n".join(each.replace("\n", " ") for each in text.split("\n\n"))


def print_result(result: Any) -> None:
    """Print a result in readable form; for files, their paths."""
    if isinstance(result, Printable):
        show(result)
    else:
        say(*(result if isinstance(result, list) else [result]))


def print_or_json(result: Any, as_json: AsJson = False) -> None:
    """Print a result in readable form or as JSON."""
    if as_json:
        say(json_text(result.to_json()))
    else:
        show(result)
