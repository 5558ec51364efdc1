"""The page docs/capacity.md speaks of options and defaults that exist."""

import inspect
import re
from pathlib import Path

import typer.main

from ithbit.api.capacity import capacity
from ithbit.capacity.rounds import BUDGET, PROTOCOL
from ithbit.capacity.search import MOST_N, Ask
from ithbit.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "capacity.md").read_text(encoding="utf-8")


def test_options_of_the_page_exist() -> None:
    command = typer.main.get_command(app).commands["capacity"]  # type: ignore[attr-defined]
    known = {flag for each in command.params for flag in each.opts}
    named = set(re.findall(r"(?<=[ `(])--?[a-z][a-z-]*", PAGE))
    assert {"--lr", "--dry-run", "--on"} <= named
    assert named <= known


def test_defaults_of_the_page_are_those_of_the_code() -> None:
    given = {name: each.default for name, each in inspect.signature(capacity).parameters.items()}
    ask = Ask()
    assert (given["need"], given["factor"], given["start"]) == (ask.need, ask.factor, ask.start)
    assert tuple(map(float, given["lr"].split(","))) == ask.rates == (0.001, 0.003, 0.01)
    assert (given["most_n"], BUDGET) == (MOST_N, 65_536)
    assert (PROTOCOL.max_epochs, PROTOCOL.stop_loss, PROTOCOL.examples) == (200, 1e-3, "mixed")
    for text in ("65,536", "factor of 1.25", "0.001, 0.003 and 0.01", "200 epochs", "from 8"):
        assert text in PAGE
