"""The reproduction page's numbers are those of the results beside it."""

from pathlib import Path

import polars as pl

from ithbit.families import FAMILIES

ROOT = Path(__file__).parents[2]


def test_length_transfer_has_the_means_of_its_results() -> None:
    page = (ROOT / "docs" / "reproduction.md").read_text()
    table = page.split("| trained at n = 64 |")[1].split("\n\n")[0].splitlines()[2:]
    means = (
        pl.read_csv(ROOT / "results" / "length_transfer.csv")
        .filter(n=64)
        .group_by("task", "family", "layers", "query_by")
        .agg(pl.mean("half"), pl.mean("double"))
    )
    for line in table:
        label, *shown = (cell.strip() for cell in line.strip("|").split("|"))
        task, _, rest = label.partition(" ")
        name, depth = rest.split(", L = ")
        if name == "softmax":  # full and causal are the same model at one layer
            name = "full softmax"
        (family,) = (f for f in FAMILIES if FAMILIES[f].label.lower() == name.lower().rstrip("2"))
        cell = means.filter(task=task.lower(), family=family, layers=int(depth))
        by = {row["query_by"]: row for row in cell.iter_rows(named=True)}
        found = [by[way][size] for way in ("instance", "training") for size in ("half", "double")]
        places = [len(text.partition(".")[2]) for text in shown]
        assert shown == [f"{x:.{p}f}" for x, p in zip(found, places, strict=True)], label
    assert len(table) == 8
