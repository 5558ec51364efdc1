"""The comparison with the published numbers as the page's template prints it."""

from dataclasses import dataclass

from ithbit.reporting.comparison.agreement import (
    AGREES,
    DIFFERS,
    MISSING,
    TESTED,
    TOO_FEW,
    Agreement,
    Comparison,
    Kind,
)
from ithbit.reporting.tables.table import NOTHING


@dataclass(frozen=True)
class KindRow:
    """The verdicts of one kind of comparison, counted."""

    name: str
    n_agree: int
    n_differ: int
    n_incomplete: int
    n_too_few: int
    n_missing: int
    least_p: str
    method: str


@dataclass(frozen=True)
class ComparisonRow:
    """One comparison; `p_value` is "" where there is none."""

    kind: str
    cell: str
    ours: str
    marks: str
    published: str
    p_value: str
    interval: str
    detects: str
    verdict: str
    differs: bool
    incomplete: bool
    n_runs: int
    runs: str  # their folders


@dataclass(frozen=True)
class ComparisonSection:
    """The result in words, and every comparison; `largest` has those furthest from agreement."""

    agrees: bool
    headline: str
    verdict: str
    verdict_counts: str
    tested: str
    joint: tuple[str, ...]
    alpha: str
    powers: tuple[str, ...]
    kinds: tuple[KindRow, ...]
    largest: tuple[ComparisonRow, ...]
    comparisons: tuple[ComparisonRow, ...]


def comparison_section(agreement: Agreement) -> ComparisonSection:
    """The section on a comparison in which something was compared."""
    return ComparisonSection(
        agreement.agrees,
        agreement.headline(),
        agreement.verdict(),
        agreement.standing.sentence(),
        TESTED,
        tuple(each.sentence() for each in agreement.joint),
        f"{agreement.alpha:g}",
        tuple(filter(None, (kind.power() for kind in agreement.kinds))),
        tuple(map(_kind_row, agreement.kinds)),
        tuple(map(_comparison_row, agreement.largest())),
        tuple(map(_comparison_row, agreement.comparisons)),
    )


def _kind_row(kind: Kind) -> KindRow:
    return KindRow(
        kind.name,
        kind.count(AGREES),
        kind.count(DIFFERS),
        kind.n_incomplete,
        kind.count(TOO_FEW),
        kind.count(MISSING),
        NOTHING if kind.smallest is None else f"{kind.smallest:.3g}",
        kind.method,
    )


def _comparison_row(comparison: Comparison) -> ComparisonRow:
    return ComparisonRow(
        comparison.kind,
        comparison.cell,
        comparison.ours,
        comparison.standing.marks() if comparison.standing else "",
        comparison.published,
        "" if comparison.p_value is None else f"{comparison.p_value:.2g}",
        comparison.interval_text,
        comparison.detects,
        comparison.verdict,
        comparison.verdict == DIFFERS,
        comparison.incomplete,
        len(comparison.runs),
        " ".join(comparison.runs),
    )
