"""What layers of flash-linear-attention learn, as a figure: one row per layer, from the largest n
solved to the smallest n failed, with the measured size of the state.

    python experiments/fla_figure.py docs/images/fla_learnt.png

Reads `results/capacity`. Hollow marks are searches that are not done.
"""

import argparse
import csv
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from ithbit.capacity_search.result import read_rows
from ithbit.reporting.figures import save
from ithbit.reporting.figures.style import PAPER, RC, SPARE

FOLDER = Path(__file__).parents[1] / "results" / "capacity"
PLAIN = "fla_states.py:"  # trained by the plain forms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("figure", type=Path)
    given = parser.parse_args()
    with (FOLDER / "fla_states.csv").open(encoding="utf-8", newline="") as file:
        states = {row["layer"]: int(row["measured"]) for row in csv.DictReader(file)}
    found = [row for row in read_rows(FOLDER / "fla_learnt.csv") if row.family.startswith(PLAIN)]
    found.sort(key=lambda row: (row.solved_at, row.failed_at or 10**6))
    colour, names = SPARE[0], []
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.subplots()
        for k, row in enumerate(found):
            name = row.family.removeprefix(PLAIN)
            names.append(f"{name}, state {states[name]:,}")
            if row.failed_at is None:
                axes.annotate(
                    "", (row.solved_at + 2, k), (row.solved_at, k),
                    arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 2},
                )  # fmt: skip
            else:
                axes.plot([row.solved_at, row.failed_at], [k, k], color=colour, linewidth=2)
            axes.plot(
                row.solved_at, k, "o", markersize=8, markeredgecolor=colour,
                markerfacecolor=colour if row.final else PAPER,
            )  # fmt: skip
        axes.set_yticks(range(len(found)), names)
        axes.set_xticks(sorted({n for row in found for n in (row.solved_at, row.failed_at) if n}))
        hollow = "" if all(row.final for row in found) else "; hollow: search not done"
        axes.set_xlabel(f"n: solved (mark), failed (end of the line){hollow}")
        axes.set_title("What one layer of width 16 learns (right-hand indexing)")
        axes.grid(axis="x")
    print(save(figure, given.figure))


if __name__ == "__main__":
    main()
