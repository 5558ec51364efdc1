"""A comparison with the published numbers as text for a terminal."""

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.table import Table

from ithbit.report.comparison.agreement import (
    AGREES,
    DIFFERS,
    MISSING,
    TOO_FEW,
    Agreement,
    Comparison,
)
from ithbit.report.standing import legend
from ithbit.wrapping import wrapped

_MOST = 5  # runs listed of one comparison


def agreement_parts(agreement: Agreement) -> Iterator[Any]:
    """The verdict, a line for each kind of comparison, and those furthest from agreement."""
    yield agreement.verdict()
    said = f"Compared by the paper's criterion. Main table: {agreement.standing.sentence()}."
    yield "\n".join(wrapped(said, then="  "))
    for note in agreement.notes:
        yield f"  {note}"
    yield ""
    yield _kinds(agreement)
    yield ""
    if agreement.n_incomplete or agreement.count(TOO_FEW):
        yield (
            "fewer: how many of those that agree or differ rest on fewer runs than the\n"
            "  paper's; too few: not judged, for lack of runs."
        )
    shares = sum(kind.smallest is not None for kind in agreement.kinds)
    if shares:
        yield (
            "* corrected over the cells of its kind; a cell differs at "
            f"{agreement.alpha:g}/{shares} = {agreement.alpha / shares:.3g}\n  or less, so that a "
            "faithful reproduction is called different at most\n  "
            f"{agreement.alpha:.0%} of the time. Agreement is no proof that nothing differs."
        )
    listed = agreement.comparisons if agreement.all else agreement.largest()
    if listed:
        yield "\nAll cells" if agreement.all else "\nFurthest from agreement"
    for line in legend(c.standing for c in listed if c.standing):
        yield "\n".join(wrapped(line, "  ", "  "))
    for found in listed:
        yield _line(found)
        if not agreement.all:
            for folder in found.runs[:_MOST]:
                yield f"             {folder}"
            if len(found.runs) > _MOST:
                yield f"             and {len(found.runs) - _MOST} more runs"


def _kinds(agreement: Agreement) -> Table:
    shape = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    shape.add_column("comparison", no_wrap=True)
    for head in ("agree", "differ", "fewer", "too few", "missing", "least p*"):
        shape.add_column(head, justify="right", no_wrap=True)
    shape.add_column("by", no_wrap=True)
    for kind in agreement.kinds:
        agree, differ, too_few, missing = map(kind.count, (AGREES, DIFFERS, TOO_FEW, MISSING))
        counts = (agree, differ, kind.n_incomplete, too_few, missing)
        least = "" if kind.smallest is None else f"{kind.smallest:.3g}"
        shape.add_row(kind.name, *(str(count or "·") for count in counts), least, kind.method)
    return shape


def _line(found: Comparison) -> str:
    p_value = "" if found.p_value is None else f"  p = {found.p_value:.2g}"
    interval = ""
    if found.interval is not None:
        interval = f"  interval {found.interval[0]:.3f} to {found.interval[1]:.3f}"
    stands = found.standing.marks() if found.standing else ""
    ours = f"{found.ours} {stands}".strip()
    return (
        f"  {found.verdict:8} {found.kind}: {found.cell}: ours {ours}, "
        f"published {found.published}{p_value}{interval}"
    )
