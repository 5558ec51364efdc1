"""The page: one HTML file that contains the models and runs them in the browser.

Text from records reaches the page in two ways, both safe: through the template, which escapes it,
and as JSON in a data block, which the script puts into the page as text nodes. A content security
policy allows no script but the page's own, and no request.
"""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from ithbit import __version__
from ithbit.errors import SpecError
from ithbit.explore.entries import Entry, construction, of_run, of_solution
from ithbit.selfcontained import environment, safe_json, script_hash, template_part
from ithbit.store.writing import write_text

HOME = "ithbit.explore"
SCRIPTS = ("model.js", "search.js", "draw.js", "pictures.js", "view.js")
MOST_RUNS = 2
MOST_BYTES = 1_000_000


def gather(folders: Sequence[Path], with_construction: bool = True) -> list[Entry]:
    """The runs of a page, and after them the construction for the first one's blocks, if any."""
    if not 1 <= len(folders) <= MOST_RUNS:
        raise SpecError(f"a page shows one run or two side by side, got {len(folders)}")
    entries = [of_run(folder) for folder in folders]
    first = entries[0].spec
    for other in entries[1:]:
        if (other.spec.task, other.spec.n_bits) != (first.task, first.n_bits):
            raise SpecError(
                "two runs on one page must have the same task and the same n, since both answer "
                f"the same question; got {entries[0].name} and {other.name}"
            )
    solution = construction(first) if with_construction else None
    return entries if solution is None else [*entries, of_solution(solution)]


def render_page(entries: Sequence[Entry]) -> str:
    """The whole page as HTML."""
    script = "\n".join(template_part(HOME, name) for name in SCRIPTS)
    html = environment().from_string(template_part(HOME, "page.html"))
    spec = entries[0].spec
    return html.render(
        version=__version__,
        task=spec.task,
        n=spec.n_bits,
        names=[entry.name for entry in entries],
        style=Markup(template_part(HOME, "page.css")),  # our own file
        script=Markup(script),  # our own files
        script_hash=script_hash(script),
        data=safe_json({"models": [entry.to_json() for entry in entries]}),
    )


def write_page(entries: Sequence[Entry], path: Path) -> Path:
    """Write the page, whole or not at all."""
    page = render_page(entries)
    if (size := len(page.encode())) > MOST_BYTES:
        raise SpecError(
            f"the page would have {size:,} bytes, and at most {MOST_BYTES:,} are allowed; "
            "leave out the construction or the second run, or show a smaller model"
        )
    return write_text(path, page)
