"""The report on a probed layer as one HTML file that needs no network, and the figure of its causal
rank, which the page of a store shows too.

All text is escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ithbit.families import TASKS
from ithbit.html import filled_page
from ithbit.reporting.figures import for_page
from ithbit.reporting.figures.grid import SHADES
from ithbit.reporting.figures.style import INK, RC


@mpl.rc_context(RC)
def rank_figure(
    width: int, ranks: Sequence[int], singular_values: Sequence[float], name: str = "rank"
) -> Markup:
    """The causal rank against k, with that of a layer that forgets nothing, and the singular values
    at the last k, where they are on record."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes, spectrum = figure.subplots(1, 2, width_ratios=(3, 2))
    k = range(1, len(ranks) + 1)
    everything = [(at - 1) * width for at in k]
    axes.plot(k, everything, ":", color=INK, label="everything: (k − 1) · width")
    axes.plot(k, ranks, marker=".", color="#0072B2", label="causal rank")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("k")
    axes.set_title("Directions of the first k − 1 inputs that still count")
    axes.legend()
    if not singular_values:
        spectrum.axis("off")
        return for_page(figure, name)
    values = [max(value, 1e-3) for value in singular_values]
    spectrum.set_yscale("log")
    spectrum.plot(range(1, len(values) + 1), values, ".", color="#0072B2")
    spectrum.axhline(1.0, linestyle=":", color=INK, label="rounding")
    spectrum.xaxis.set_major_locator(MaxNLocator(integer=True))
    spectrum.set_title(f"Singular values at k = {len(ranks)}")
    spectrum.legend()
    return for_page(figure, name)


@dataclass(frozen=True)
class Square:
    """A count of solved runs as its text, and the colours behind and of the text."""

    text: str
    background: str
    ink: str


@dataclass(frozen=True)
class ProbeTable:
    """The counts of one task: the layer's own row first, then a row per family."""

    task: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Square, ...]], ...]


@dataclass(frozen=True)
class ProbePage:
    """What the template of a probe's page shows."""

    layer: str
    behaviour: str
    rank: str
    rank_figure: Markup | None  # None if the rank is no measure of the layer
    width: int
    tables: tuple[ProbeTable, ...]  # none if nothing was trained
    text: str


def render_probe(report: Any) -> str:
    """The page of a `ProbeReport`, with the report in words below the figures."""
    rank, plan = report.rank, report.plan
    heads = tuple(f"n = {n}, L = {depth}" for n, depth in plan.cells)
    tables = (
        ProbeTable(
            task.upper(),
            heads,
            tuple((name, tuple(map(_square, counts))) for name, counts in report.counts(task)),
        )
        for task in TASKS
    )
    page = ProbePage(
        report.layer,
        report.behaviour.sentence(report.layer),
        rank.sentence(),
        rank_figure(rank.width, rank.ranks, rank.values) if rank.fault is None else None,
        plan.width,
        tuple(tables) if report.runs else (),
        str(report),
    )
    return filled_page("ithbit.reporting.page", "probe.html", page=page)


def _square(count: Any) -> Square:
    if count is None or not count.runs:
        return Square(str(count or "–"), "none", "inherit")
    share = count.solved / count.runs
    return Square(str(count), to_hex(SHADES(share)), "white" if share > 0.5 else "#111111")
