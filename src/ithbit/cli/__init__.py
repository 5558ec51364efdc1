"""The command line: a thin door to the package.

Each command module has a `register(app)`. Commands import what they need inside their functions, so
that `--help` and every command that needs no tensors answers at once and without torch.
"""

import sys

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
