"""The page docs/capacity.md speaks of options and defaults that exist."""

import csv
import inspect
import re
from pathlib import Path

import typer.main

from ithbit.api.probing import capacity
from ithbit.capacity.rounds import BUDGET, PROTOCOL
from ithbit.capacity.search import MOST_N, Ask
from ithbit.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")


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


def test_layers_of_the_page_are_those_that_were_measured() -> None:
    text = (ROOT / "results" / "capacity" / "fla_states.csv").read_text(encoding="utf-8")
    rows = {row["layer"]: row for row in csv.DictReader(text.splitlines())}
    section = PAGE.split("## Layers people use")[1].split("\n## ")[0]
    shown = re.findall(
        r"^\| ([\w-]+) \| ([\d,]+) \| [scf] \| (\d+) \| (\d+) \| (\d+) \|", section, re.M
    )
    assert [name for name, *_ in shown] == list(rows)
    for name, declared, measured, first, last in shown:
        assert rows[name]["declared"] == declared.replace(",", "")
        assert rows[name]["measured"] == measured
        assert f"{measured} from k = {first} to {last}" in rows[name]["ranks"]
