"""What a probe measured of a layer: its causal rank and the singular values behind it."""

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ithbit.report.figures.style import INK, RC


@mpl.rc_context(RC)
def rank_figure(width: int, ranks: Sequence[int], singular_values: Sequence[float]) -> Figure:
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
        return figure
    values = [max(value, 1e-3) for value in singular_values]
    spectrum.set_yscale("log")
    spectrum.plot(range(1, len(values) + 1), values, ".", color="#0072B2")
    spectrum.axhline(1.0, linestyle=":", color=INK, label="rounding")
    spectrum.xaxis.set_major_locator(MaxNLocator(integer=True))
    spectrum.set_title(f"Singular values at k = {len(ranks)}")
    spectrum.legend()
    return figure
