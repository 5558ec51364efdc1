"""Draw successes on samples and those that stand, by kind of examples.

    python experiments/everywhere_figure.py [--results results/everywhere] [-o everywhere.png]

Reads the exports `uniform`, `mixed` and `blocks`. A bar is the successes by the paper's criterion;
its filled part is not refuted by the search of `ithbit verify`. *Not refuted* is not *right*.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import polars as pl

from ithbit.errors import StoreError
from ithbit.families import FAMILIES

mpl.use("Agg")
from matplotlib import pyplot as plt

KINDS = {"uniform": "#D55E00", "mixed": "#56B4E9", "blocks": "#0072B2"}
LENGTHS = (32, 64)
REFUTED, TRIED = pl.col("verification") == "refuted", pl.col("verification").is_not_null()


def counts(results: Path) -> pl.DataFrame:
    """Runs, successes and those that stand, by cell and kind of examples."""
    frames = [
        pl.read_csv(results / kind / "runs.csv")
        .filter(
            pl.col("n_bits").is_in(LENGTHS),
            ~((pl.col("task") == "rhi") & (pl.col("family") == "softmax-causal")),
        )
        .group_by("task", "family", "n_layers", "n_bits")
        .agg(
            pl.col("solved").count().alias("runs"),  # null: it could not be run
            pl.sum("solved"),
            (pl.col("solved") & ~REFUTED).sum().alias("stands"),
            (pl.col("solved") & ~TRIED).sum().alias("untried"),
        )
        .with_columns(kind=pl.lit(kind))
        for kind in KINDS
    ]
    found = pl.concat(frames)
    if untried := found["untried"].sum():
        raise StoreError(f"{untried} solved runs have no verdict; `ithbit verify` gives one")
    return found


def draw(found: pl.DataFrame, out: Path) -> None:
    """One panel per length, one bar per configuration and kind."""
    cells = sorted(
        set(found.select("task", "family", "n_layers").iter_rows()),
        key=lambda cell: (cell[0] == "lhi", list(FAMILIES).index(cell[1])),
    )
    figure, axes = plt.subplots(1, len(LENGTHS), figsize=(11, 5.2), sharey=True)
    for axis, n in zip(axes, LENGTHS, strict=True):
        for at, (task, family, layers) in enumerate(cells):
            for shift, (kind, colour) in zip((-0.27, 0, 0.27), KINDS.items(), strict=True):
                cell = {"task": task, "family": family, "n_layers": layers, "n_bits": n}
                (row,) = found.filter(kind=kind, **cell).iter_rows(named=True)
                axis.barh(at + shift, row["solved"], 0.24, color="white", edgecolor=colour)
                axis.barh(at + shift, row["stands"], 0.24, color=colour, edgecolor=colour)
        names = [f"{t.upper()} {FAMILIES[f].label}, L = {layers}" for t, f, layers in cells]
        axis.set_yticks(range(len(cells)), names)
        axis.set_xlim(0, 20.5)
        axis.set_xticks(range(0, 21, 5))
        axis.set_title(f"n = {n}")
        axis.set_xlabel("runs of 20")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()  # shared
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in KINDS.values()]
    hollow = plt.Rectangle((0, 0), 1, 1, facecolor="white", edgecolor="black")
    labels = [f"trained on {kind} examples, no wrong answer found" for kind in KINDS]
    figure.legend(
        [*handles, hollow],
        [*labels, "passed 2,000 samples, but a wrong answer found"],
        loc="lower center",
        ncols=2,
        frameon=False,
    )
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results/everywhere"))
    parser.add_argument("-o", "--out", type=Path, default=Path("everywhere.png"))
    given = parser.parse_args()
    found = counts(given.results)
    draw(found, given.out)
    totals = found.group_by("kind", "n_bits").agg(pl.sum("runs", "solved", "stands"))
    for kind, n, runs, solved, stands in totals.sort("n_bits", "kind").iter_rows():
        print(f"n = {n}, {kind}: {solved} of {runs} solved on samples, {stands} not refuted")


if __name__ == "__main__":
    main()
