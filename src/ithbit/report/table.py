"""What a table is: text in cells, ours and the published, with the marks that make it honest.

Marks: `*` on a cell with fewer finished runs than the paper has, `–` where there is nothing. A cell
that the paper does not have is never starred.
"""

from dataclasses import dataclass

from ithbit.families import FAMILIES, Group
from ithbit.report.cells import Cells, Summary
from ithbit.report.published import Mean, Variant

MARKS: dict[Group, str] = {"constructive": "✓", "stress test": "✗"}
NOTHING = "–"


@dataclass(frozen=True)
class Value:
    """One cell: ours and the published number as text, None where there is none.

    `share` is our success rate where the cell is a count, for shading.
    """

    ours: str | None
    published: str | None
    share: float | None = None
    published_share: float | None = None


@dataclass(frozen=True)
class Row:
    """Labels on the left, values on the right. `kind` is row, total or extra (not the paper's).

    `variant` is the one whose runs the row counts, None where it counts several.
    """

    labels: tuple[str, ...]
    values: tuple[Value, ...]
    kind: str = "row"
    variant: Variant | None = None


@dataclass(frozen=True)
class Table:
    """One table; `label` is the paper's."""

    name: str
    label: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def variant_labels(variant: Variant) -> tuple[str, str, str]:
    """Task, family and depth as a table prints them."""
    return (variant.task.upper(), FAMILIES[variant.family].label, str(variant.n_layers))


def count_value(ours: tuple[int, int], theirs: tuple[int, int] | None, bare: bool = False) -> Value:
    """A count beside the published one; `bare` prints the latter without its runs, as the paper."""
    k, m = ours
    printed, short = None, ""
    if theirs is not None:
        printed = str(theirs[0]) if bare else f"{theirs[0]}/{theirs[1]}"
        short = "*" if m < theirs[1] else ""
    return Value(
        f"{k}/{m}{short}" if m else None,
        printed,
        k / m if m else None,
        None if theirs is None else theirs[0] / theirs[1],
    )


def spread_text(found: Summary | None, decimals: int, wanted: int) -> str | None:
    """Mean ± sample sd, the sd left out below two runs; starred below `wanted` runs."""
    if found is None:
        return None
    sd = "" if found.sd is None else f"±{found.sd:.{decimals}f}"
    return f"{found.mean:.{decimals}f}{sd}{'*' if found.runs < wanted else ''}"


def printed_mean(mean: Mean) -> str:
    """A published mean as the paper prints it."""
    return f"{mean.mean:.{mean.decimals}f}±{mean.sd:.{mean.decimals}f}"


def common_notes(cells: Cells | None, rows: list[Row]) -> list[str]:
    """What every table says of itself: incomplete cells and runs that are not counted."""
    if cells is None:
        return []
    values = [value for row in rows for value in row.values]
    notes = []
    if any(value.ours and value.ours.endswith("*") for value in values):
        notes.append("* fewer finished runs than the paper has for this cell")
    missing = sum(value.ours is None for value in values if value.published is not None)
    if missing:
        notes.append(f"{NOTHING} no finished run ({missing} missing)")
    return notes + cells.notes()
