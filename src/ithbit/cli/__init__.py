"""The command line: parses options, calls the Python API and prints what it returns.

API functions import what they need when they are called, so that `--help` and every command that
needs no tensors answer at once, without loading torch.
"""

import sys
from io import TextIOWrapper
from typing import Any

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """The application with all commands, imported on first use."""
    if name != "app":
        raise AttributeError(f"module 'ithbit.cli' has no attribute {name!r}")
    from ithbit.cli import commands as commands  # each adds itself to the application
    from ithbit.cli.application import app

    return app


def main() -> None:
    """Run the command line; a user's mistake prints one sentence to standard error, status 2; a
    certificate that does not hold, status 1."""
    if sys.argv[1:2] != ["check"] or "--help" in sys.argv:
        return _run()
    from ithbit.contract.child_process import end_ahead, start_ahead

    start_ahead()  # a check's process imports torch meanwhile
    try:
        _run()
    finally:
        end_ahead()
    return None


def _run() -> None:
    from ithbit.cli import app
    from ithbit.display import say
    from ithbit.errors import IthbitError

    if isinstance(sys.stdout, TextIOWrapper):  # an encoding without ✓, treated as for stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except IthbitError as error:
        say(f"ithbit: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except SystemExit as stop:
        if stop.code == 130:  # typer's code for Ctrl-C; its cause may say what was saved
            pressed = stop.__context__ and stop.__context__.__cause__
            text = str(pressed or "") or "stopped; run the same command again to continue"
            say(f"ithbit: {text}", file=sys.stderr)
        raise
