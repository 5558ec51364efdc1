"""The command line: parses options, calls the Python door and prints what it returns.

The door's functions import what they need when they are called, so that `--help` and every command
that needs no tensors answers at once and without torch.
"""

import re
import sys
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ithbit import __version__
from ithbit.cli import bench, commands, demo
from ithbit.errors import IthbitError


class _Flags:
    """Flags show no type in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    """One command."""


class _Group(_Flags, TyperGroup):
    """The whole command line."""


app = typer.Typer(
    name="ithbit",
    cls=_Group,
    help="Can a sequence model read the i-th bit? Prove it, train it, compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ithbit {__version__}")
        raise typer.Exit


@app.callback()
def _ithbit(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None: ...


demo.register(app)
commands.register_training(app)
commands.register_records(app)
commands.register_trained(app)
commands.register_theory(app)
bench.register(app)


def flowing(text: str) -> str:
    r"""Help text with a line a paragraph, which wraps at any width; typer keeps line breaks.

    Paragraphs that begin with \b, and those with a list or indented lines, stay as they
    are written.

    >>> flowing("One\ntwo.\n\n- a\n- b")
    'One two.\n\n- a\n- b'
    """
    written = re.compile(r"^(?:[-*•] |\d+\. |\s)|\A\x08", re.MULTILINE)
    paragraphs = cleandoc(text).split("\n\n")
    return "\n\n".join(p if written.search(p) else p.replace("\n", " ") for p in paragraphs)


for command in app.registered_commands:
    command.cls = _Command
    command.help = flowing(command.help or (command.callback and command.callback.__doc__) or "")


def main() -> None:
    """Run the command line; a user's mistake is one sentence on standard error and status 2."""
    try:
        app()
    except IthbitError as error:
        print(f"ithbit: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # what typer makes of Ctrl-C; its cause may say what was saved
            pressed = stop.__context__ and stop.__context__.__cause__
            text = str(pressed or "") or "stopped; run the same command again to continue"
            print(f"ithbit: {text}", file=sys.stderr)
        raise
