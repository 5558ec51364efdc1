"""Published accuracies on multi-query recall (MQAR) against two sizes of the model: its whole
state, and the fingerprint, the numbers of the past that one later output sees.

    python experiments/mqar_states.py [--figure docs/images/recall.png]

Reads `results/recall/mqar_zoology.csv`: accuracies that Zoology (Arora et al., 2312.04927;
github.com/HazyResearch/zoology, commit d88d6f5) published as a figure, `zoology_results.png`, read
off by pixel: to 0.003, horizontally to 1 %. Both sizes are computed here, by the formulas below;
`state` must agree with what the figure shows on its horizontal axis, four bytes a number.

All have two layers. GLA, DeltaNet, Gated DeltaNet, RWKV-7 and Based have a short convolution of
width 3 in place of the first, whose 3 d numbers Zoology counts to the state. Of the fingerprint,
the last tokens are held fixed, so that a short window in the first layer counts nothing; one in the
second counts its partial sums. A long convolution or a time-invariant SSM counts one number per
channel, whatever its length: one later output sees one sum.

    d width, N state, f features, e = 1 + f + f (f + 1) / 2 Taylor features
"""

import argparse
import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ithbit.reporting.figures import save
from ithbit.reporting.figures.style import RC

POINTS = Path(__file__).parents[1] / "results" / "recall" / "mqar_zoology.csv"
LENGTH = 1024  # tokens, for Hyena's state
FIXED = ("Hyena", "H3")  # filters that do not depend on the input

# state and fingerprint, of both layers
SIZES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "GLA": lambda d, _: (d * d // 4 + 3 * d, d * d // 4),
    "DeltaNet": lambda d, _: (d * d // 2 + 3 * d, d * d // 2 + 3 * d),  # convolutions of q, k, v
    "Gated DeltaNet": lambda d, _: (d * d + 3 * d, d * d + 3 * d),
    "RWKV-7": lambda d, _: (64 * d + 3 * d, 64 * d + d),  # heads of width 64; shift by one token
    "Based": lambda d, f: ((d + 1) * taylor(f) + 3 * d, (d + 1) * taylor(f)),
    "Mamba": lambda d, N: (4 * d * N, 4 * d * N + 2 * d),  # convolution of 2 d channels
    "Mamba-2": lambda d, N: (4 * d * N, 4 * d * N + 2 * d + 2 * N),
    "Hyena": lambda d, _: (2 * d * LENGTH, 5 * d),  # d; then 3 d of the short filter, and d
    "H3": lambda d, N: (2 * d * N, 6 * d),  # per layer d shifted keys, and 2 d by heads of width 2
}


def taylor(features: int) -> int:
    """Taylor features of the exponential, to degree 2."""
    return 1 + features + features * (features + 1) // 2


@dataclass(frozen=True)
class Point:
    """One model of the figure; `first` marks the 31 points without those near accuracy 1."""

    model: str
    width: int
    size: str
    first: bool
    state_read: int
    accuracy: float

    @property
    def sizes(self) -> tuple[int, int]:
        """State and fingerprint."""
        return SIZES[self.model](self.width, int(self.size.partition("=")[2] or 0))


def points() -> list[Point]:
    with POINTS.open(encoding="utf-8", newline="") as file:
        return [
            Point(
                row["model"],
                int(row["width"]),
                row["size"],
                row["among_31"] == "yes",
                int(row["state_read"]),
                float(row["accuracy"]),
            )
            for row in csv.DictReader(file)
        ]


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, with mean ranks for ties."""

    def ranks(values: list[float]) -> np.ndarray:
        array = np.array(values)
        below = (array[:, None] > array).sum(1)
        return below + ((array[:, None] == array).sum(1) - 1) / 2

    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def correlations(some: list[Point]) -> tuple[float, float]:
    """Of accuracy with the state and with the fingerprint."""
    accuracies = [point.accuracy for point in some]
    sizes = [[float(point.sizes[which]) for point in some] for which in (0, 1)]
    state, fingerprint = (rank_correlation(size, accuracies) for size in sizes)
    return state, fingerprint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", type=Path)
    given, found = parser.parse_args(), points()
    sets = {
        "31 points": [point for point in found if point.first],
        f"all {len(found)}": found,
        "without Hyena and H3": [point for point in found if point.model not in FIXED],
    }
    for name, some in sets.items():
        state, fingerprint = correlations(some)
        print(f"{name} ({len(some)}): state {state:+.2f}, fingerprint {fingerprint:+.2f}")
    print(f"smallest fingerprint: {min(point.sizes[1] for point in found)}")
    if given.figure is not None:
        print(save(drawn(found), given.figure))


def drawn(found: list[Point]) -> Figure:
    """Two panels, one abscissa each."""
    marks = dict(zip(SIZES, "os^vDP*Xh", strict=True))
    colours = ["#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7", "#999999"]
    colours += ["#D55E00", "#000000"]
    with mpl.rc_context(RC):
        figure = Figure(figsize=(7.2, 3.4), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        titles = ("state", "fingerprint")
        for which, (axes, title) in enumerate(zip(panels, titles, strict=True)):
            for (model, mark), colour in zip(marks.items(), colours, strict=True):
                some = [point for point in found if point.model == model]
                axes.plot(
                    [point.sizes[which] for point in some],
                    [point.accuracy for point in some],
                    mark, color=colour, markersize=5, label=model,
                    markeredgecolor="#1a1b1c", markeredgewidth=0.4,
                )  # fmt: skip
            axes.set_xscale("log")
            axes.set_xlabel(f"numbers of the {title}")
            axes.set_title(f"{title}: rank correlation {correlations(found)[which]:+.2f}")
            axes.grid()
        panels[0].set_ylabel("accuracy on MQAR, as published")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure


if __name__ == "__main__":
    main()
