"""Commands that are expected to succeed, in this process."""

from typer.testing import CliRunner

from ithbit.cli import app


def output_of(*arguments: str) -> str:
    """What a command prints; it must end with 0."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
