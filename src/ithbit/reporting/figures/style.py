"""How figures look: one colour, marker and dash per family, everywhere.

Colours are Okabe and Ito's, which colour-blind readers can distinguish; markers and dashes carry
the same information in grey. Full attention is drawn solid, causal dashed. `INK`, `PAPER` and
`FAINT` are unusual values on purpose: the report page replaces exactly these in its light and dark
themes.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import cycle
from math import log
from typing import Any

from matplotlib.axes import Axes

from ithbit.families import FAMILIES, Family, family_named
from ithbit.reporting.cells import Layer

INK = "#1a1b1c"
PAPER = "#fdfdfe"
FAINT = "#c8c9ca"
CHANCE = 0.5
MANY_LENGTHS = 8
AXIS = 2.2  # inches of the narrowest axis of lengths

RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",  # text stays text: it can be searched and themed
    "pdf.fonttype": 42,
}


# For users' layers, families that name no look, and settings; visible on light and on dark.
SPARE = (
    "#7A5CD6", "#999933", "#A0522D", "#88837A", "#CC3377", "#117733", "#5577AA", "#BB9900",
)  # fmt: skip
_MARKERS = "X*hp<>8d"


def looks(layers: Iterable[Layer], store: Iterable[Layer] = ()) -> dict[Layer, Family]:
    """The colour, marker and dash with which each of these layers is drawn, families first.

    Users' layers take the spare looks in the order of their names, counted over all layers of the
    `store`: each looks the same in figures that show different layers. With other settings than
    the rest, a family keeps its colour but not its marker and dash.
    """
    extra = dict.fromkeys(layers)
    families = {layer[:2]: family_named(layer[0]) for layer in (*store, *extra)}
    own = sorted(layer for layer, of in families.items() if not (of.colour and of.marker))
    spare = dict(zip(own, cycle(zip(SPARE, _MARKERS, strict=True)), strict=False))
    order: list[Layer] = [(name, "") for name in FAMILIES if (name, "") in extra]
    order += [layer for layer in extra if layer not in order]
    settings = list(dict.fromkeys(layer[2] for layer in order if layer[2:]))
    alike = len(settings) == 1 and all(layer[2:] for layer in order)

    def look(layer: Layer) -> Family:
        family = family_named(layer[0])
        colour, marker = spare.get(layer[:2]) or (family.colour, family.marker)
        family = replace(family, colour=colour, marker=marker)
        if alike or not layer[2:]:
            return family
        marker = _MARKERS[settings.index(layer[2]) % len(_MARKERS)]
        return replace(family, marker=marker, dash="-." if family.dash == "-" else ":")

    return {layer: look(layer) for layer in order}


def lengths_axis(axes: Axes, lengths: list[int]) -> None:
    """A logarithmic axis of lengths n, ticked at those that occur or, if many, at powers of two.

    Ticks too close to others, as they would be on the narrowest axis, have no number.
    """
    axes.set_xscale("log", base=2)
    ticks = lengths
    if len(lengths) > MANY_LENGTHS:
        ticks = [2**power for power in range(31) if lengths[0] <= 2**power <= lengths[-1]]
    low, high = lengths[0] / 1.25, lengths[-1] * 1.25
    inch = {n_bits: AXIS * log(n_bits / low) / log(high / low) for n_bits in ticks}
    named: list[int] = []
    for n_bits in sorted(ticks, key=lambda n: (n & (n - 1) > 0, n)):  # powers of two first
        room = 0.1 * len(str(lengths[-1])) + 0.05
        if all(abs(inch[n_bits] - inch[other]) > room for other in named):
            named.append(n_bits)
    axes.set_xticks(ticks, [str(n_bits) if n_bits in named else "" for n_bits in ticks])
    axes.minorticks_off()
    axes.set_xlim(low, high)


def chance_line(axes: Axes, text: bool = True, left: bool = False) -> None:
    """The accuracy of a guess, labelled at the right end or the left."""
    axes.axhline(CHANCE, color=INK, linewidth=0.8, linestyle=":", zorder=1)
    if text:
        axes.annotate(
            "chance",
            (0.01 if left else 0.99, CHANCE),
            xycoords=("axes fraction", "data"),
            xytext=(0, -8),
            textcoords="offset points",
            ha="left" if left else "right",
            fontsize=7,
        )
