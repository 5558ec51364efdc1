"""A probe's report as one HTML file that needs no network; all text goes through escaping."""

import io
from pathlib import Path

import jinja2
import matplotlib as mpl
from markupsafe import Markup
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ithbit import __version__
from ithbit.families import FAMILIES, TASKS, Task
from ithbit.probe.model import Cell
from ithbit.probe.report import ProbeReport
from ithbit.probe.text import report_text
from ithbit.report.figures.grid import SHADES
from ithbit.report.figures.style import RC
from ithbit.report.output import write_text

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>ithbit probe: {{ report.layer }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1b1c; background: #fdfdfe; }
table { border-collapse: collapse; } th, td { padding: .25rem .6rem; text-align: left; }
td { text-align: center; border: 1px solid #fdfdfe; } tr.user th { font-weight: bold; }
th { font-weight: normal; } pre { overflow-x: auto; background: #f2f3f4; padding: 1rem; }
</style></head><body>
<h1>{{ report.layer }}</h1>
<p>{{ report.behaviour.sentence(report.layer) }}. Causal rank: {{ report.rank.sentence() }}.</p>
{% if report.rank.fault is none %}
<figure>{{ figure }}</figure>
{% endif %}
{% if report.runs %}
<h2>Successes beside the six families</h2>
<p>Width {{ report.plan.width }}; successful seeds out of runs. p: published. –: not in the store.
Observed on samples, not proved.</p>
{% for task, rows in grid %}
<h3>{{ task }}</h3>
<table><thead><tr><th></th>
{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr></thead><tbody>
{% for name, user, cells in rows %}
<tr{% if user %} class="user"{% endif %}><th scope="row">{{ name }}</th>
{% for text, colour, ink in cells %}
<td style="background:{{ colour }};color:{{ ink }}">{{ text }}</td>
{% endfor %}</tr>{% endfor %}
</tbody></table>
{% endfor %}
{% endif %}
<h2>In full</h2>
<pre>{{ text }}</pre>
<p>Written by ithbit {{ version }}.</p>
</body></html>
"""


def render_probe(report: ProbeReport) -> str:
    """The page as HTML."""
    plan = report.plan
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_PAGE).render(
        report=report,
        heads=[f"n = {n}, L = {depth}" for n in plan.lengths for depth in plan.layers],
        # Without training the families were not looked up either.
        grid=[(task.upper(), _rows(report, task)) for task in TASKS if report.runs],
        figure=Markup(_rank_svg(report)),  # drawn here, from numbers and our own labels
        text=report_text(report),
        version=__version__,
    )


def write_probe(report: ProbeReport, path: Path) -> Path:
    """Write the page, whole or not at all."""
    return write_text(path, render_probe(report))


def _rows(report: ProbeReport, task: Task) -> list[tuple[str, bool, list[tuple[str, str, str]]]]:
    plan = report.plan
    where = [(n, depth) for n in plan.lengths for depth in plan.layers]
    own = [report.count(Cell(task, n, depth, plan.width)) for n, depth in where]
    rows = [(report.layer, True, [_cell(f"{k}/{m}", k / m if m else None) for k, m in own])]
    for name, family in FAMILIES.items():
        found = {r.n_layers: r for r in report.families if (r.task, r.family) == (task, name)}
        cells = []
        for n, depth in where:
            count = found[depth].counts[n]
            if count is None:
                cells.append(_cell("–", None))
            else:
                mark = "p" if count.origin == "published" else ""
                cells.append(_cell(f"{count.solved}/{count.runs}{mark}", count.solved / count.runs))
        rows.append((family.label, False, cells))
    return rows


def _cell(text: str, share: float | None) -> tuple[str, str, str]:
    if share is None:
        return text, "#fdfdfe", "#1a1b1c"
    return text, to_hex(SHADES(share)), "white" if share > 0.5 else "#111111"


def _rank_svg(report: ProbeReport) -> str:
    """The causal rank against k, with what a layer that forgets nothing would have."""
    with mpl.rc_context({**RC, "svg.hashsalt": "rank", "svg.id": "rank"}):
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        k = range(1, report.rank.n + 1)
        axes.plot(
            k, [(at - 1) * report.rank.width for at in k], ":", label="everything: (k − 1) · width"
        )
        axes.plot(k, report.rank.ranks, marker=".", label="causal rank")
        axes.set_xlabel("k")
        axes.set_title("Directions of the first k − 1 inputs that still count")
        axes.legend()
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]
