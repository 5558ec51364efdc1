"""The capacity card: one HTML file with a search's results, its figure and a summary in words.

All text is escaped.
"""

from importlib.resources import as_file, files

from ithbit.capacity.figure import capacity_figure, fits
from ithbit.capacity.result import HEADS, Capacities, Capacity, cells, read_rows
from ithbit.report.figures import for_page
from ithbit.selfcontained import short_page

_STYLE = """th, td { text-align: right; border-bottom: 1px solid var(--line); }
.large { font-size: 1.3rem; }
"""
_BODY = """<h1>{{ layers }}: how many bits?</h1>
{% for line in lines %}<p class="large">{{ line }}</p>{% endfor %}
<div class="scroll"><table><thead><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr>
</thead><tbody>{% for row in rows %}
<tr>{% for value in row %}<td>{{ value }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table></div>
<p>{{ asked }}</p>
<figure>{{ figure }}</figure>
<p>{{ legend }}</p>
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
    own = {each.cell for each in found}
    known = [each for each in atlas() if each.cell not in own]
    exponents = [each.sentence() for each in fits(known)]
    layers = ", ".join(dict.fromkeys(each.label for each in found))
    fitted = f" Fitted, with 95 % intervals: {'; '.join(exponents)}." if exponents else ""
    return short_page(
        f"capacity: {layers}",
        _STYLE,
        _BODY,
        layers=layers,
        lines=[*(each.sentence() for each in found), *found.stuck],
        heads=HEADS,
        rows=[cells(each) for each in found],
        asked=found.asked,
        figure=for_page(capacity_figure(known, tuple(found)), "capacity"),
        legend=_LEGEND + fitted,
    )
