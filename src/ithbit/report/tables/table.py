"""What a table is: text in cells, ours and the published, with the marks that make it honest.

Marks: `*` on a cell with fewer finished runs than the paper has, `–` where there is nothing. A cell
that the paper does not have is never starred.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ithbit.families import Group, group
from ithbit.published import Mean, Variant
from ithbit.report.cells import Cells, Summary
from ithbit.report.comparison.statistics import Count

MARKS: dict[Group, str] = {"constructive": "✓", "stress test": "✗"}
NOTHING = "–"
VERDICTS = "all inputs"
_VERDICTS_NOTE = (
    "all inputs: of the solved runs that `ithbit verify` has tried, how many were right on every "
    "input (float32, final weights), +k? where a search found nothing, k✗ with a counterexample"
)


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


def variant_labels(variant: Variant, cells: Cells = Cells()) -> tuple[str, str, str]:
    """Task, family and depth as a table prints them."""
    return (variant.task.upper(), cells.label(variant), str(variant.n_layers))


def marked_labels(variant: Variant, cells: Cells) -> tuple[str, str, str, str]:
    """Labels with the mark of what the theorems promise; users' layers have none."""
    mark = MARKS.get(group(variant.task, variant.family, variant.n_layers), NOTHING)
    return (*variant_labels(variant, cells), mark)


def count_value(ours: Count, theirs: Count | None, bare: bool = False) -> Value:
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


def verdict_values(
    cells: Cells, variants: Iterable[Variant], lengths: list[int]
) -> tuple[Value, ...]:
    """The column of verdicts, of all lengths together; none where nothing was verified."""
    if not cells.n_verified:
        return ()
    found = cells.verdicts(variants, lengths)
    if not found.tried:
        return (Value(None, None),)
    text = f"{found.right}/{found.tried}"
    text += f" +{found.open}?" if found.open else ""
    text += f" {found.wrong}✗" if found.wrong else ""
    return (Value(text, None),)


def by_length(
    name: str,
    label: str,
    title: str,
    rows: list[Row],
    notes: list[str],
    cells: Cells,
    lengths: list[int],
) -> Table:
    """A table with a column for each length and, where there are any, one of verdicts."""
    verified = bool(cells.n_verified)
    variants = [row.variant for row in rows if row.variant]
    counts = {cells.count(variant, n)[1] for variant in variants for n in lengths} - {0}
    return Table(
        name,
        label,
        title,
        ("Task", "Model family", "L", "Thm."),
        (*(f"n={n_bits}" for n_bits in lengths), *[VERDICTS] * verified),
        tuple(rows),
        (
            *notes,
            *[_VERDICTS_NOTE] * verified,
            *([f"cells have {min(counts)} to {max(counts)} runs"] if len(counts) > 1 else []),
            *cells.early_notes(),
            *common_notes(cells, rows),
        ),
    )


def common_notes(cells: Cells, rows: list[Row]) -> list[str]:
    """What every table says of itself: incomplete cells and runs that are not counted."""
    if not cells.by_cell:
        return []
    values = [value for row in rows for value in row.values]
    notes = []
    if any(value.ours and value.ours.endswith("*") for value in values):
        notes.append("* fewer finished runs than the paper has for this cell")
    missing = sum(value.ours is None for value in values if value.published is not None)
    if missing:
        notes.append(f"{NOTHING} no finished run ({missing} missing)")
    return notes + cells.notes()
