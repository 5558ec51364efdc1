"""The report on a probed layer as one HTML file that needs no network, from its record.

All text is escaped.
"""

from typing import Any

from matplotlib.colors import to_hex

from ithbit.families import Task
from ithbit.report.figures import to_svg
from ithbit.report.figures.grid import SHADES
from ithbit.report.figures.rank import rank_figure
from ithbit.report.page.page import themed
from ithbit.report.page.short import short_page

Counts = dict[Task, list[tuple[str, list[Any]]]]

_STYLE = """th { text-align: left; font-weight: normal; } tr.user th { font-weight: bold; }
td { text-align: center; border: 1px solid var(--card); }
pre { overflow-x: auto; background: var(--box); padding: 1rem; }
"""
_BODY = """<h1>{{ report.layer }}</h1>
<p>{{ report.behaviour.sentence }}. Causal rank: {{ report.causal_rank.sentence }}.</p>
{% if report.causal_rank.fault is none %}
<figure>{{ figure }}</figure>
{% endif %}
{% if report.runs %}
<h2>Solved runs beside the six families</h2>
<p>Width {{ report.width }}; solved runs of all. p: published. –: not in the store.
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
<pre>{{ text }}</pre>
"""


def render_probe(report: dict[str, Any], counts: Counts, text: str) -> str:
    """The page of a probe's record (`ProbeReport.to_json`), with the report in words below it.

    `counts` has for each task the rows of `ProbeReport.counts`, none if nothing was trained.
    """
    rank = report["causal_rank"]
    values = rank.get("singular_values", [])
    return short_page(
        f"probe: {report['layer']}",
        _STYLE,
        _BODY,
        report=report,
        heads=[f"n = {n}, L = {depth}" for n in report["lengths"] for depth in report["layers"]],
        grid=[
            (task.upper(), [(name, list(map(_cell, found))) for name, found in rows])
            for task, rows in counts.items()
        ],
        figure=themed(to_svg(rank_figure(report["width"], rank["ranks"], values), "rank")),
        text=text,
    )


def _cell(count: Any) -> tuple[str, str, str]:
    """The text in a square, its colour and its ink."""
    if count is None or not count.runs:
        return str(count or "–"), "none", "inherit"
    share = count.solved / count.runs
    return str(count), to_hex(SHADES(share)), "white" if share > 0.5 else "#111111"
