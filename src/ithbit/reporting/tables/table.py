"""Tables as data: cells with our and the published numbers as text, and marks for missing runs.

Marks: `*` on a cell with fewer finished runs than the paper has, `–` where there is nothing. A cell
that the paper does not have is never starred.
"""

from dataclasses import dataclass

from ithbit.families import FAMILIES, Group, group
from ithbit.published import Mean, Variant
from ithbit.reporting.cells import Cells
from ithbit.reporting.comparison.statistics import Count
from ithbit.reporting.verdict_counts import SOLVED, VerdictCounts, legend

MARKS: dict[Group, str] = {"constructive": "✓", "stress test": "✗"}
NOTHING = "–"
MARKS_NOTE = (
    "✓ constructive: the paper's theorems give a small solution at this depth; ✗ stress test: they "
    "give none, and most say that there is none once n is large"
)
_NAMES_NOTE = (
    f"{FAMILIES['mamba2'].label} is `mamba2` on the command line; the theorems are about its "
    "formal layer, `ssm`, and for GRU about `rnn`"
)


@dataclass(frozen=True)
class Value:
    """One cell: ours and the published number as text, None where there is none.

    `share` is the share of solved runs where the cell is a count, for shading; `standing` counts
    the verdicts on these.
    """

    ours: str | None
    published: str | None
    share: float | None = None
    published_share: float | None = None
    standing: VerdictCounts | None = None

    @property
    def marks(self) -> str:
        """The verdicts on the solved runs behind the number, "" where none was tried."""
        return self.standing.marks() if self.standing else ""


@dataclass(frozen=True)
class TableRow:
    """Labels on the left, values on the right. `kind` is row, total or extra (not the paper's).

    `variant` is the one whose runs the row counts, None where it counts several.
    """

    labels: tuple[str, ...]
    values: tuple[Value, ...]
    kind: str = "row"
    variant: Variant | None = None

    @property
    def has_ours(self) -> bool:
        return any(value.ours for value in self.values)

    def breaks(self, above: "TableRow") -> bool:
        """Whether a rule goes between: at a new task, the rows beyond the paper, the totals."""
        task = self.labels[0]
        return self.kind != above.kind or (task in ("RHI", "LHI") and task != above.labels[0])


@dataclass(frozen=True)
class ReportTable:
    """One table; the first of the notes explains the columns, the others are about our runs.

    `legend` explains words and letters, which the page explains in one place.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]
    n_bits: int | None = None  # of all its runs, where they have one length

    @property
    def legend(self) -> list[str]:
        shown = [value.standing for row in self.rows for value in row.values if value.standing]
        sentences = [f"solved: {SOLVED}"] if any(each.runs for each in shown) else []
        sentences += legend(shown)
        if any(r.variant and r.variant.family == "mamba2" and r.has_ours for r in self.rows):
            sentences.append(_NAMES_NOTE)
        return sentences

    @property
    def has_ours(self) -> bool:
        """Whether any cell has runs of ours."""
        return any(row.has_ours for row in self.rows)

    def has(self, column: int, whose: str) -> bool:
        """Whether a column has a number, ours or published."""
        return any(getattr(row.values[column], whose) for row in self.rows)


def variant_labels(variant: Variant, cells: Cells) -> tuple[str, str, str]:
    """Task, family and depth as a table prints them."""
    return (variant.task.upper(), cells.label(variant), str(variant.n_layers))


def marked_labels(variant: Variant, cells: Cells) -> tuple[str, str, str, str]:
    """Labels with the mark of what the theorems promise; users' layers have none."""
    mark = MARKS.get(group(variant.task, variant.family, variant.n_layers), NOTHING)
    return (*variant_labels(variant, cells), mark)


def count_value(ours: VerdictCounts, theirs: Count | None, bare: bool = False) -> Value:
    """A count with the published one; `bare` prints that without its runs, as the paper does."""
    k, m = ours.solved, ours.runs
    printed, short = None, ""
    if theirs is not None:
        printed = str(theirs[0]) if bare else f"{theirs[0]}/{theirs[1]}"
        short = "*" if m < theirs[1] else ""
    return Value(
        f"{k}/{m}{short}" if m else None,
        printed,
        k / m if m else None,
        None if theirs is None else theirs[0] / theirs[1],
        ours,
    )


def spread_text(mean: Mean | None, decimals: int, wanted: int = 0) -> str | None:
    """Mean ± sample sd, the sd left out below two runs; starred below `wanted` runs."""
    if mean is None:
        return None
    sd = "" if mean.sd is None else f"±{mean.sd:.{decimals}f}"
    return f"{mean.mean:.{decimals}f}{sd}{'*' if mean.runs < wanted else ''}"
