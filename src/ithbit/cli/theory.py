"""Commands of the theory: certify, check-certificate, bound, complexity, verdict, explain."""

import typer


def register(app: typer.Typer) -> None:
    """Add this module's commands to the application."""
