"""The result of a comparison: verdicts per cell, per kind of comparison and overall.

Verdicts: *no evidence* (of a difference), *differs*, *missing* (no run of ours) and *too
few* (not enough runs to judge: one where an interval needs two, or, in a cell that pools several
configurations, not all of them trained as often as the paper's). *Fewer* is not a verdict: it
counts those that are judged but rest on fewer runs than the paper's. `compare.py` says which
test is behind each.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from rich import box
from rich.table import Table

from ithbit.display import Paragraph, Printable, lower_text, upper_text
from ithbit.reporting.verdict_counts import VerdictCounts, legend

AGREES, DIFFERS, MISSING, TOO_FEW = "no evidence", "differs", "missing", "too few"
ONE_WAY = "successes one way"  # the kind whose tests are in `Joint`
HYPOTHESIS = "in every cell our runs succeed with the same probability as the paper's"
TESTED = (
    f"Hypothesis: {HYPOTHESIS}; tested against more, or less, often throughout (exact, given the "
    "successes of both):"
)
NO_COUNT = "no count"  # would differ
_MOST = 5  # runs listed of one comparison
_MOST_POWER = 3  # published counts for which the power is given


@dataclass(frozen=True)
class Comparison:
    """One cell. `p_value` is the cell's own, `adjusted` after correction over its kind.

    `interval` is for ours minus published; for epochs it is for the ratio of ours to published.
    """

    kind: str
    cell: str
    ours: str
    published: str
    verdict: str
    runs: tuple[str, ...] = ()
    incomplete: bool = False
    p_value: float | None = None
    adjusted: float | None = None
    interval: tuple[float, float] | None = None
    standing: VerdictCounts | None = None  # verdicts on our solved runs, where counted
    detects: str = ""  # its power: what of ours would differ from the published number

    @property
    def interval_text(self) -> str:
        """The interval, rounded outward; empty if there is none."""
        if self.interval is None:
            return ""
        low, high = self.interval
        most = upper_text(high, places=3) if high < math.inf else "any number"
        return f"{lower_text(low, places=3)} to {most}"

    def to_json(self) -> dict[str, Any]:
        ends = self.interval and tuple(end if math.isfinite(end) else None for end in self.interval)
        counts = self.standing and self.standing.to_json()
        return asdict(self) | {"interval": ends, "standing": counts}


def beyond(limits: tuple[int | None, int | None], runs: int | None = None) -> str:
    """Which counts of ours, or of so many runs, would differ: up to the first, from the second on.

    >>> beyond((0, None), 20), beyond((3, 20), 20), beyond((990, 1040)), beyond((None, None), 5)
    ('0/20', '3/20 or fewer, 20/20', '990 or fewer, 1040 or more', 'no count')
    """
    few, many = limits
    of = "" if runs is None else f"/{runs}"
    ranges = [] if few is None else [f"{few}{of}{' or fewer' if few else ''}"]
    ranges += [] if many is None else [f"{many}{of}{'' if many == runs else ' or more'}"]
    return ", ".join(ranges) or NO_COUNT


@dataclass(frozen=True)
class Joint:
    """A directed test over several cells: whether ours succeed more, or less, often throughout."""

    comparison: Comparison
    expected: float  # successes of ours if the hypothesis holds, given all successes
    p_fewer: float  # the probability of so few, and of so many, if it holds
    p_more: float

    def sentence(self) -> str:
        """The result with its power."""
        comparison = self.comparison
        way = "fewer" if self.p_fewer < self.p_more else "more"
        verdict = f"{way} than expected" if comparison.verdict == DIFFERS else "no evidence"
        # A small p that is no evidence after all would look like a contradiction by itself.
        small = (
            comparison.p_value is not None
            and comparison.p_value < 0.05
            and comparison.adjusted is not None
        )
        corrected = f", {comparison.adjusted:.2g} corrected" if small else ""
        return (
            f"{comparison.cell}: {comparison.ours} solved, {self.expected:.1f} expected, "
            f"p = {comparison.p_value:.2g}{corrected}: {verdict}; "
            f"would differ: {comparison.detects}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"hypothesis": HYPOTHESIS}


@dataclass(frozen=True)
class Kind:
    """The result of one kind of comparison."""

    name: str
    method: str
    comparisons: tuple[Comparison, ...]

    def count(self, verdict: str) -> int:
        return sum(comparison.verdict == verdict for comparison in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        comparisons = [comparison.to_json() for comparison in self.comparisons]
        return {"name": self.name, "method": self.method, "comparisons": comparisons}

    @property
    def n_incomplete(self) -> int:
        """How many were judged on fewer runs than the paper's."""
        return sum(c.incomplete and c.verdict in (AGREES, DIFFERS) for c in self.comparisons)

    def power(self) -> str:
        """What single counts of this kind can show; empty for other kinds."""
        if "Fisher" not in self.method:
            return ""
        judged = [c for c in self.comparisons if c.verdict in (AGREES, DIFFERS)]
        able = sorted({(c.published, c.detects) for c in judged if c.detects != NO_COUNT})
        shown = able if len(able) <= _MOST_POWER else able[:: len(able) // _MOST_POWER + 1]
        text = "; ".join(f"{ours} against {published}" for published, ours in shown)
        none = sum(c.detects == NO_COUNT for c in judged)
        if not judged:
            return ""
        if not able:
            return f"{self.name}, one cell by itself: no count of ours would differ."
        rest = f"; in {none} of {len(judged)} cells no count at all" if none else ""
        among = "" if shown == able else ", for example"
        return f"{self.name}, one cell by itself: would differ{among}: {text}{rest}."

    @property
    def smallest(self) -> float | None:
        """The least adjusted p-value; None if the kind has none."""
        return min((c.adjusted for c in self.comparisons if c.adjusted is not None), default=None)


@dataclass(frozen=True, repr=False)
class Agreement(Printable):
    """All comparisons and their result; `notes` say which runs were compared.

    They use the paper's criterion, solved on samples; `standing` counts the verdicts on them.
    """

    alpha: float
    kinds: tuple[Kind, ...]
    standing: VerdictCounts
    notes: tuple[str, ...]
    joint: tuple[Joint, ...] = ()  # over all cells, and by group; none if nothing is compared
    all: bool = False  # whether every comparison is shown

    def to_json(self) -> dict[str, Any]:
        return {
            "agrees": self.agrees,
            "complete": self.complete,
            "verdict": self.verdict(),
            "joint": [each.to_json() for each in self.joint],
            "alpha": self.alpha,
            "standing": self.standing.to_json(),
            "notes": list(self.notes),
            "kinds": [kind.to_json() for kind in self.kinds],
        }

    def render(self) -> Iterator[Any]:
        """The tests of many cells at once, the verdict, a line for each kind of comparison, and
        the comparisons furthest from agreement."""
        if self.joint:
            yield Paragraph(f"Successes of many cells at once. {TESTED}", then="  ")
        for each in self.joint:
            yield Paragraph(each.sentence(), "  ", "    ")
        yield Paragraph(self.verdict(), then="  ")
        text = f"Compared by the paper's criterion. Main table: {self.standing.sentence()}."
        yield Paragraph(text, then="  ")
        for note in self.notes:
            yield Paragraph(note, "  ", "  ")
        yield ""
        yield _kinds(self.kinds)
        yield ""
        if self.n_incomplete or self.count(TOO_FEW):
            yield Paragraph(
                "fewer: how many of those that are judged rest on fewer runs than the paper's; "
                "too few: not judged, for lack of runs.",
                then="  ",
            )
        for power in filter(None, (kind.power() for kind in self.kinds)):
            yield Paragraph(power, then="  ")
        shares = sum(kind.smallest is not None for kind in self.kinds)
        if shares:
            yield Paragraph(
                "* corrected over the cells of its kind; a cell differs at "
                f"{self.alpha:g}/{shares} = {lower_text(self.alpha / shares, 3)} "
                "or less, so that a faithful reproduction is called different at most "
                f"{upper_text(100 * Fraction(str(self.alpha)), 3)}% of the time, as far as runs "
                "are independent and the intervals' approximations hold. "
                "No evidence is no proof that nothing differs.",
                then="  ",
            )
        listed = self.comparisons if self.all else self.largest()
        if listed:
            yield "\nAll cells" if self.all else "\nFurthest from agreement"
        for line in legend(c.standing for c in listed if c.standing):
            yield Paragraph(line, "  ", "  ")
        for comparison in listed:
            yield Paragraph(_line(comparison), "  ", "    ")
            if not self.all:
                for folder in comparison.runs[:_MOST]:
                    yield f"    {folder}"
                if len(comparison.runs) > _MOST:
                    yield f"    and {len(comparison.runs) - _MOST} more runs"

    @property
    def comparisons(self) -> list[Comparison]:
        return [comparison for kind in self.kinds for comparison in kind.comparisons]

    def count(self, verdict: str) -> int:
        return sum(kind.count(verdict) for kind in self.kinds)

    @property
    def n_compared(self) -> int:
        return self.count(AGREES) + self.count(DIFFERS)

    @property
    def n_incomplete(self) -> int:
        return sum(kind.n_incomplete for kind in self.kinds)

    @property
    def agrees(self) -> bool:
        return self.count(DIFFERS) == 0

    @property
    def complete(self) -> bool:
        return self.n_compared == len(self.comparisons) and not self.n_incomplete

    def headline(self) -> str:
        """The result in one line, only for what was compared."""
        total, compared = len(self.comparisons), self.n_compared
        if not compared:
            return "Not compared with the published numbers"
        if not self.agrees:
            return "✗ Differs from the published numbers"
        where = "" if compared == total else f" where compared: {compared} of {total}"
        return f"✓ No evidence of a difference from the published numbers{where}"

    def verdict(self) -> str:
        """The result in one or two sentences."""
        total, compared = len(self.comparisons), self.n_compared
        differing = self.count(DIFFERS)
        if self.count(MISSING) == total:
            return f"Nothing to compare: all {total} comparisons are missing."
        if not compared:
            head = "Nothing to compare yet."
        elif differing:
            head = f"Disagreement: {differing} of {compared} comparisons differ."
        else:
            head = f"No evidence of a difference: none of {compared} comparisons differs."
        lacking = [
            f"{number} {one if number == 1 else many} {what}"
            for number, one, many, what in (
                (self.count(MISSING), "is", "are", "missing"),
                (self.count(TOO_FEW), "has", "have", "too few runs to judge"),
                (self.n_incomplete, "rests", "rest", "on fewer runs than the paper's"),
            )
            if number
        ]
        if not lacking:
            return head
        listed = " and ".join(filter(None, (", ".join(lacking[:-1]), lacking[-1])))
        return f"{head} Of {total} in all, {listed}."

    def largest(self, count: int = 5) -> list[Comparison]:
        """The comparisons furthest from agreement, most striking first.

        Those that differ, then those whose own p-value is below 0.05, which chance alone gives to
        one cell in twenty.
        """
        notable = [
            c
            for c in self.comparisons
            if c.verdict == DIFFERS or (c.p_value is not None and c.p_value < 0.05)
        ]
        return sorted(notable, key=lambda c: (c.verdict != DIFFERS, c.p_value or 0.0))[:count]


def _kinds(kinds: Sequence[Kind]) -> Table:
    """A row for each kind; counts that are 0 throughout are left out."""
    shape = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    columns = {
        "no ev.": [kind.count(AGREES) for kind in kinds],
        "differ": [kind.count(DIFFERS) for kind in kinds],
        "fewer": [kind.n_incomplete for kind in kinds],
        "too few": [kind.count(TOO_FEW) for kind in kinds],
        "missing": [kind.count(MISSING) for kind in kinds],
    }
    shown = {head: counts for head, counts in columns.items() if head == "no ev." or any(counts)}
    shape.add_column("comparison", min_width=10)
    for head in (*shown, "least p*"):
        shape.add_column(head, justify="right", no_wrap=True)
    shape.add_column("by", min_width=9)  # as wide as its longest word
    for kind, *counts in zip(kinds, *shown.values(), strict=True):
        least = "" if kind.smallest is None else f"{kind.smallest:.3g}"
        shape.add_row(kind.name, *(str(count or "·") for count in counts), least, kind.method)
    return shape


def _line(comparison: Comparison) -> str:
    p_value = "" if comparison.p_value is None else f"; p = {comparison.p_value:.2g}"
    interval = f"; interval {comparison.interval_text}" if comparison.interval else ""
    power = f"; would differ: {comparison.detects}" if comparison.detects else ""
    marks = comparison.standing.marks() if comparison.standing else ""
    ours = f"{comparison.ours} {marks}".strip()
    return (
        f"{comparison.verdict:11} {comparison.kind}: {comparison.cell}: ours {ours}, "
        f"published {comparison.published}{p_value}{interval}{power}"
    )
