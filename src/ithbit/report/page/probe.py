"""The report on a probed layer as one HTML file that needs no network, from its record.

All text is escaped.
"""

from pathlib import Path
from typing import Any

from matplotlib.colors import to_hex

from ithbit import __version__
from ithbit.families import Task
from ithbit.report.figures import to_svg
from ithbit.report.figures.grid import SHADES
from ithbit.report.figures.rank import rank_figure
from ithbit.report.page.page import themed
from ithbit.selfcontained import environment
from ithbit.store.writing import write_text

Counts = dict[Task, list[tuple[str, list[Any]]]]

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>ithbit probe: {{ report.layer }}</title>
<style>
:root { color-scheme: light dark;
  --ink: #1a1b1c; --card: #fdfdfe; --line: #c8c9ca; --box: #f2f3f4; --s0: #eef3f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf0; --card: #1c2126; --line: #39424b; --box: #14181c; --s0: #232a31; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--card); }
table { border-collapse: collapse; } th, td { padding: .25rem .6rem; text-align: left; }
td { text-align: center; border: 1px solid var(--card); } tr.user th { font-weight: bold; }
th { font-weight: normal; } pre { overflow-x: auto; background: var(--box); padding: 1rem; }
figure, .scroll { overflow-x: auto; margin: 1rem 0; } figure svg { min-width: 560px; height: auto; }
</style></head><body>
<h1>{{ report.layer }}</h1>
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
<p>Written by ithbit {{ version }}.</p>
</body></html>
"""


def render_probe(report: dict[str, Any], counts: Counts, text: str) -> str:
    """The page of a probe's record (`ProbeReport.to_json`), with the report in words below it.

    `counts` has for each task the rows of `ProbeReport.counts`, none if nothing was trained.
    """
    rank = report["causal_rank"]
    values = rank.get("singular_values", [])
    return (
        environment()
        .from_string(_PAGE)
        .render(
            report=report,
            heads=[
                f"n = {n}, L = {depth}" for n in report["lengths"] for depth in report["layers"]
            ],
            grid=[
                (task.upper(), [(name, list(map(_cell, found))) for name, found in rows])
                for task, rows in counts.items()
            ],
            figure=themed(to_svg(rank_figure(report["width"], rank["ranks"], values), "rank")),
            text=text,
            version=__version__,
        )
    )


def write_probe(report: dict[str, Any], counts: Counts, text: str, path: Path) -> Path:
    """Write the page, whole or not at all."""
    return write_text(path, render_probe(report, counts, text))


def _cell(count: Any) -> tuple[str, str, str]:
    """The text in a square, its colour and its ink."""
    if count is None or not count.runs:
        return str(count or "–"), "none", "inherit"
    share = count.solved / count.runs
    return str(count), to_hex(SHADES(share)), "white" if share > 0.5 else "#111111"
