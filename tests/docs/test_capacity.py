"""The page docs/capacity.md speaks of options and defaults that exist."""

import csv
import inspect
import re

import typer.main
from tests.support.paths import RESULTS, ROOT

from ithbit.api.probing import capacity
from ithbit.capacity_search.search import MOST_N, SearchSettings
from ithbit.capacity_search.search_rounds import BUDGET, PROTOCOL
from ithbit.cli import app

PAGE = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")


def test_options_of_the_page_exist() -> None:
    command = typer.main.get_command(app).commands["capacity"]  # type: ignore[attr-defined]
    known = {flag for each in command.params for flag in each.opts}
    named = set(re.findall(r"(?<=[ `(])--?[a-z][a-z-]*", PAGE))
    assert {"--lr", "--dry-run", "--on"} <= named
    assert named <= known


def test_defaults_of_the_page_are_those_of_the_code() -> None:
    given = {name: each.default for name, each in inspect.signature(capacity).parameters.items()}
    ask = SearchSettings()
    assert (given["need"], given["factor"], given["start"]) == (ask.need, ask.factor, ask.start)
    assert tuple(map(float, given["lr"].split(","))) == ask.rates == (0.001, 0.003, 0.01)
    assert (given["most_n"], BUDGET) == (MOST_N, 65_536)
    assert (PROTOCOL.max_epochs, PROTOCOL.stop_loss, PROTOCOL.examples) == (200, 1e-3, "mixed")
    for text in ("65,536", "factor of 1.25", "0.001, 0.003 and 0.01", "200 epochs", "from 8"):
        assert text in PAGE


def test_layers_of_the_page_are_those_that_were_measured() -> None:
    text = (RESULTS / "capacity" / "fla_states.csv").read_text(encoding="utf-8")
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


def shown(row: dict[str, str]) -> str:
    """A bracket as the page shows it."""
    if row["failed_at"]:
        found = f"{row['solved_at']} – {row['failed_at']}"
    else:
        found = f"≥ {row['solved_at']}"
    return found if row["final"] == "True" else f"{found} …"


def test_brackets_of_the_page_are_those_that_were_found() -> None:
    depths = {"one layer": "1", "two layers": "2", "three layers": "3"}
    names = {
        "GRU": "gru",
        "Mamba2": "mamba2",
        "causal linear": "linear-causal",
        "full linear": "linear-full",
        "full softmax": "softmax-full",
    }
    text = (RESULTS / "capacity" / "atlas.csv").read_text(encoding="utf-8")
    found = {
        (row["task"], row["family"], row["layers"], row["width"]): shown(row)
        for row in csv.DictReader(text.splitlines())
    }
    on_page = {}
    for block in PAGE.split("\n\n"):
        head, *lines = [[cell.strip() for cell in line.split("|")] for line in block.splitlines()]
        if not re.match(r"\| (RHI|LHI)[ ,]", block):
            continue
        task, _, depth = head[1].partition(", ")
        widths = [re.sub(r"\D", "", cell) for cell in head[2:-1]]
        for _, label, *brackets, _ in lines[1:]:
            name, _, own = label.partition(", ")
            for width, bracket in zip(widths, brackets, strict=True):
                key = (task.lower(), names[name], depths[own or depth], width)
                on_page.update({key: bracket} if bracket else {})
    assert on_page == found


def test_what_layers_people_use_learn_is_what_was_found() -> None:
    text = (RESULTS / "capacity" / "fla_learnt.csv").read_text(encoding="utf-8")
    rows = {row["family"]: shown(row) for row in csv.DictReader(text.splitlines())}
    section = PAGE.split("**What they learn**")[1]
    table = re.findall(r"^\| (\w+) \| [\d,]+ \| ([^|]+) \| ([^|]*) ?\|", section, re.M)
    plain = {name: learns.strip() for name, learns, _ in table}
    kernels = {name: f"{by.strip()} …" for name, _, by in table if by.strip()}
    assert plain == {
        family.split(":")[1]: bracket
        for family, bracket in rows.items()
        if family.startswith("fla_states.py:")
    }
    assert kernels == {
        family.split(":")[1]: bracket
        for family, bracket in rows.items()
        if family.startswith("fla:")
    }
