"""The report on a probed layer as one HTML file that needs no network, and the figure of its causal
rank, which the page of a store shows too.

All text is escaped.
"""

from collections.abc import Sequence
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


def render_probe(report: Any) -> str:
    """The page of a `ProbeReport`, with the report in words below the figures."""
    rank = report.rank
    return filled_page(
        "ithbit.reporting.page",
        "probe.html",
        report=report,
        tasks=TASKS,
        cell=_cell,
        figure=rank_figure(rank.width, rank.ranks, rank.values),
    )


def _cell(count: Any) -> tuple[str, str, str]:
    """The text in a square, its colour and its ink."""
    if count is None or not count.runs:
        return str(count or "–"), "none", "inherit"
    share = count.solved / count.runs
    return str(count), to_hex(SHADES(share)), "white" if share > 0.5 else "#111111"
