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
from ithbit.report.figures import for_page
from ithbit.report.figures.grid import SHADES
from ithbit.report.figures.style import INK, RC
from ithbit.selfcontained import short_page

_STYLE = """th { text-align: left; font-weight: normal; } tr.user th { font-weight: bold; }
td { text-align: center; border: 1px solid var(--card); }
pre { overflow-x: auto; background: var(--box); padding: 1rem; }
"""
_BODY = """<h1>{{ report.layer }}</h1>
<p>{{ report.behaviour.sentence(report.layer) }}. Causal rank: {{ report.rank.sentence() }}.</p>
{% if report.rank.fault is none %}
<figure>{{ figure }}</figure>
{% endif %}
{% if report.runs %}
<h2>Solved runs beside the six families</h2>
<p>Width {{ report.plan.width }}; solved runs of all. p: published. –: not in the store.
Observed on samples, not proved.</p>
{% for task, rows in grid %}
<h3>{{ task }}</h3>
<div class="scroll"><table><thead><tr><th></th>
{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr></thead><tbody>
{% for name, cells in rows %}
<tr{% if loop.first %} class="user"{% endif %}><th scope="row">{{ name }}</th>
{% for text, colour, ink in cells %}
<td style="background:{{ colour }};color:{{ ink }}">{{ text }}</td>
{% endfor %}</tr>{% endfor %}
</tbody></table></div>
{% endfor %}
{% endif %}
<h2>In full</h2>
<pre>{{ report }}
</pre>
"""


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
    return short_page(
        f"probe: {report.layer}",
        _STYLE,
        _BODY,
        report=report,
        heads=[f"n = {n}, L = {depth}" for n, depth in report.plan.cells],
        grid=[
            (task.upper(), [(name, list(map(_cell, found))) for name, found in report.counts(task)])
            for task in TASKS
            if report.runs
        ],
        figure=rank_figure(rank.width, rank.ranks, rank.values),
    )


def _cell(count: Any) -> tuple[str, str, str]:
    """The text in a square, its colour and its ink."""
    if count is None or not count.runs:
        return str(count or "–"), "none", "inherit"
    share = count.solved / count.runs
    return str(count), to_hex(SHADES(share)), "white" if share > 0.5 else "#111111"
