"""The capacity card: one HTML file with a search's results, its figure and a summary in words.

All text is escaped.
"""

from importlib.resources import as_file, files
from pathlib import Path

from ithbit import __version__
from ithbit.capacity.figure import capacity_figure, fits
from ithbit.capacity.result import HEADS, Capacities, Capacity, cells, read_rows
from ithbit.report.figures import to_svg
from ithbit.report.page.page import themed
from ithbit.selfcontained import environment
from ithbit.store.writing import write_text

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>ithbit capacity: {{ title }}</title>
<style>
:root { color-scheme: light dark;
  --ink: #1a1b1c; --card: #fdfdfe; --line: #c8c9ca; --s0: #eef3f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf0; --card: #1c2126; --line: #39424b; --s0: #232a31; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--card); }
table { border-collapse: collapse; } th, td { padding: .25rem .6rem; text-align: right;
  border-bottom: 1px solid var(--line); }
figure, .scroll { overflow-x: auto; margin: 1rem 0; } figure svg { min-width: 560px; height: auto; }
.large { font-size: 1.3rem; }
</style></head><body>
<h1>{{ title }}: how many bits?</h1>
{% for line in lines %}<p class="large">{{ line }}</p>{% endfor %}
<div class="scroll"><table><thead><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr>
</thead><tbody>{% for row in rows %}
<tr>{% for value in row %}<td>{{ value }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table></div>
<p>{{ asked }}</p>
<figure>{{ figure }}</figure>
<p>{{ legend }}</p>
<p>Written by ithbit {{ version }}.</p>
</body></html>
"""
_LEGEND = (
    "Marks show the largest n solved; lines extend up to the n that failed. The state is the "
    "causal rank of a layer times the number of layers, measured or counted (c). No model that is "
    "evaluated recurrently in 32-bit numbers goes past 32·S; in real arithmetic no weights go past "
    "n*, which is proved or conditional as marked."
)


def atlas() -> tuple[Capacity, ...]:
    """The known capacities: those of results/capacity."""
    with as_file(files("ithbit.capacity").joinpath("atlas.csv")) as path:
        return read_rows(path)


def render_card(found: Capacities) -> str:
    """The card of a search as HTML, its cells shown among the known ones."""
    own = [(each.family, each.code, each.task, each.layers, each.width) for each in found]
    known = [
        each
        for each in atlas()
        if (each.family, each.code, each.task, each.layers, each.width) not in own
    ]
    exponents = [each.sentence() for each in fits(known)]
    return (
        environment()
        .from_string(_PAGE)
        .render(
            title=", ".join(dict.fromkeys(each.label for each in found)),
            lines=[*(each.sentence() for each in found), *found.stuck],
            heads=HEADS,
            rows=[cells(each) for each in found],
            asked=found.asked,
            figure=themed(to_svg(capacity_figure(known, tuple(found)), "capacity")),
            legend=_LEGEND
            + (f" Fitted, with 95 % intervals: {'; '.join(exponents)}." * bool(exponents)),
            version=__version__,
        )
    )


def write_card(found: Capacities, path: Path) -> Path:
    """Write the card, whole or not at all."""
    return write_text(path, render_card(found))
