"""The command line: a thin door to the package.

Each command module has a `register(app)`. Commands import what they need inside their functions, so
that `--help` and every command that needs no tensors answers at once and without torch.
"""

import re
import sys
from inspect import cleandoc

import typer

from ithbit.cli import (
    bench,
    bounds,
    certificates,
    demo,
    probe,
    report,
    score,
    sweep,
    train,
    verdicts,
    verify,
)
from ithbit.errors import IthbitError

app = typer.Typer(
    name="ithbit",
    help="Can a sequence model read the i-th bit? Prove it, train it, compare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (
    *(demo, train, sweep, report, probe, verify, score),
    *(verdicts, certificates, bounds, bench),
):
    module.register(app)


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
    command.help = flowing(command.help or (command.callback and command.callback.__doc__) or "")


def main() -> None:
    """Run the command line; a user's mistake is one sentence on standard error and status 2."""
    try:
        app()
    except IthbitError as error:
        print(f"ithbit: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # all that typer leaves of Ctrl-C
            print("ithbit: stopped; the same command goes on from here", file=sys.stderr)
        raise
