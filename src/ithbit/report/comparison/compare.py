"""Whether our runs agree with the published numbers, cell by cell and overall.

Seven kinds of comparison, each over the cells of one table:

- *successes*: Fisher's exact test on each count, Holm's correction over the cells;
- *successes together*: one exact test over all those cells at once (`omnibus_exact`), which sees
  what single cells of five runs cannot: after Holm's correction over 92 cells even 0/5 against 5/5
  is no evidence;
- *accuracy*: Welch's interval for the difference of mean maximum accuracies, simultaneous over the
  cells (Bonferroni), widened by the rounding of the published mean and standard deviation;
- *epochs*: an interval for the ratio of medians, taking log epochs to be normal with our spread on
  both sides (the paper gives no spread), simultaneous over the cells;
- *encodings*: Fisher's exact test with Holm's correction over the ablation's ten counts;
- *length shift*: Welch's interval for accuracy at n/2 and at 2n, simultaneous over the cells;
- *parameters*: equal or not.

A cell that pools several configurations is judged only once each has as many runs as the paper's:
before, ours would be another mixture.

`alpha` is shared out equally among the kinds that test something, so that a faithful reproduction
is called a disagreement with probability at most alpha, as far as the intervals' approximations
hold. Agreement means no evidence of a difference: with five runs a side it is no proof of none.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import polars as pl

from ithbit.errors import SpecError
from ithbit.families import family_named
from ithbit.published import RUNS_PER_CELL, LengthRow, Mean, PositionsRow, Variant, published
from ithbit.report.cells import Cell, Cells, median, solved, summary
from ithbit.report.comparison.agreement import (
    AGREES,
    DIFFERS,
    MISSING,
    TOO_FEW,
    Agreement,
    Comparison,
    Kind,
)
from ithbit.report.comparison.statistics import (
    Count,
    Difference,
    fisher_exact,
    holm,
    median_ratio,
    omnibus_exact,
    welch,
)
from ithbit.report.standing import standing
from ithbit.report.tables.appendix import length_runs, positions_runs


def cell_name(variant: Variant, n_bits: int) -> str:
    """What a comparison calls the cell of a variant at one length."""
    label = family_named(variant.family).label
    return f"{variant.task.upper()} {label} L={variant.n_layers} n={n_bits}"


def _fisher_kind(
    name: str,
    method: str,
    alpha: float,
    cells: Iterable[tuple[str, pl.DataFrame, Count, bool]],
) -> Kind:
    """Each cell is its name, our runs, the published count and whether it can be judged yet."""
    found: list[Comparison] = []
    for cell, runs, theirs, ready in cells:
        printed = f"{theirs[0]}/{theirs[1]}"
        if runs.is_empty():
            found.append(Comparison(name, cell, "–", printed, MISSING))
            continue
        stand = standing(runs)
        k, m = stand.solved, stand.runs
        p_value = fisher_exact((k, m), theirs) if ready else None
        found.append(
            Comparison(
                name,
                cell,
                f"{k}/{m}",
                printed,
                AGREES if ready else TOO_FEW,
                tuple(runs["folder"]),
                m < theirs[1],
                p_value,
                standing=stand,
            )
        )
    tested = [at for at, comparison in enumerate(found) if comparison.p_value is not None]
    adjusted = holm([p for at in tested if (p := found[at].p_value) is not None])
    for at, p_value in zip(tested, adjusted, strict=True):
        verdict = DIFFERS if p_value <= alpha else AGREES
        found[at] = replace(found[at], adjusted=p_value, verdict=verdict)
    return Kind(name, method, tuple(found))


def _paper_total() -> Count:
    """All published successes of the main table and their runs."""
    paper = published()
    total = sum(sum(counts.values()) for counts in paper.totals.values())
    return total, RUNS_PER_CELL * sum(len(row.successes) for row in paper.successes)


def _together_kind(kind: Kind, alpha: float) -> Kind:
    """The omnibus test over the cells of a Fisher kind."""
    counts = []
    for comparison in kind.comparisons:
        if comparison.verdict != MISSING:
            k, m = map(int, comparison.ours.split("/"))
            other_k, other_m = map(int, comparison.published.split("/"))
            counts.append(((k, m), (other_k, other_m)))
    name, method = "successes together", "one exact test"
    cell = f"all {len(counts)} cells with runs"
    if not counts:
        k, m = _paper_total()
        return Kind(name, method, (Comparison(name, "all cells", "–", f"{k}/{m}", MISSING),))
    p_value = omnibus_exact(counts)
    ours, theirs = (
        f"{sum(pair[side][0] for pair in counts)}/{sum(pair[side][1] for pair in counts)}"
        for side in (0, 1)
    )
    comparison = Comparison(
        name,
        cell,
        ours,
        theirs,
        DIFFERS if p_value <= alpha else AGREES,
        incomplete=any(c.incomplete or c.verdict == MISSING for c in kind.comparisons),
        p_value=p_value,
        adjusted=p_value,
    )
    return Kind(name, method, (comparison,))


@dataclass(frozen=True)
class _Measured:
    """A cell of an interval kind before the correction; `difference` None where it has too few."""

    cell: str
    ours: str
    published: str
    runs: pl.DataFrame
    incomplete: bool
    difference: Difference | None


def _interval_kind(
    name: str,
    method: str,
    alpha: float,
    measured: list[_Measured],
    scale: Callable[[float], float] = lambda difference: difference,
) -> Kind:
    tests = sum(item.difference is not None for item in measured)
    found = []
    for item in measured:
        base = Comparison(
            name, item.cell, item.ours, item.published, MISSING, tuple(item.runs["folder"])
        )
        if item.difference is None:
            found.append(base if item.runs.is_empty() else replace(base, verdict=TOO_FEW))
            continue
        low, high = item.difference.interval(alpha / tests)
        found.append(
            replace(
                base,
                verdict=AGREES if low <= 0 <= high else DIFFERS,
                incomplete=item.incomplete,
                p_value=item.difference.p_value,
                adjusted=min(1.0, tests * item.difference.p_value),
                interval=(scale(low), scale(high)),
            )
        )
    return Kind(name, method, tuple(found))


def _measured_mean(cell: str, runs: pl.DataFrame, column: str, theirs: Mean) -> _Measured:
    found = summary(runs, column)
    places = theirs.decimals
    printed = f"{theirs.mean:.{places}f}±{theirs.sd:.{places}f}"
    if found is None:
        return _Measured(cell, "–", printed, runs.clear(), True, None)
    if found.sd is None:
        return _Measured(cell, f"{found.mean:.{places + 1}f}", printed, runs, True, None)
    # The published sd may be half a unit larger than printed; its mean, half a unit off.
    difference = welch(
        found.mean,
        found.sd,
        found.runs,
        theirs.mean,
        theirs.sd + theirs.half_unit,
        theirs.runs,
    )
    return _Measured(
        cell,
        f"{found.mean:.{places + 1}f}±{found.sd:.{places + 1}f}",
        printed,
        runs,
        found.runs < theirs.runs,
        replace(difference, slack=theirs.half_unit),
    )


def _measured_epochs(cells: Cells) -> list[_Measured]:
    found = []
    for row in published().cost:
        runs = cells.runs(row.variant, 64, whole=True)
        cell, printed = cell_name(row.variant, 64), str(row.median_epochs)
        if runs.is_empty():
            found.append(_Measured(cell, "–", printed, runs, True, None))
            continue
        epochs = [float(value) for value in runs["epochs"]]
        difference = None
        if len(epochs) > 1:
            difference = median_ratio(epochs, row.median_epochs, row.runs, 0.5)
        shown = f"{median(runs, 'epochs'):g}"
        found.append(_Measured(cell, shown, printed, runs, len(epochs) < row.runs, difference))
    return found


def _measured_lengths(cells: Cells) -> list[_Measured]:
    paper = published()
    found = []
    for row in (*paper.length_by_n, *paper.length_by_family):
        runs = length_runs(cells, row.n_bits, row.variant)
        ready = row.variant is not None or all(
            cells.runs(each.variant, row.n_bits, whole=True).height >= RUNS_PER_CELL
            for each in paper.cost
        )
        for side, where, theirs in _sides(row):
            name = f"{_length_cell(row)} at {where}"
            item = _measured_mean(name, solved(runs), f"{side}_length_accuracy", theirs)
            # Complete once as many have run: how many of them succeed is not for us to choose.
            item = replace(item, incomplete=runs.height < row.runs)
            found.append(item if ready else replace(item, difference=None))
    return found


def _ablation_ready(cells: Cells, row: PositionsRow) -> bool:
    """Whether every configuration of the ablation has run as often as the paper's."""
    paper = published()
    return all(
        cells.runs(v, row.n_bits, row.positions).height >= len(paper.positions_seeds)
        for v in paper.positions_variants
        if family_named(v.family).takes(row.positions)
    )


def _sides(row: LengthRow) -> tuple[tuple[str, str, Mean], ...]:
    return (("half", "n/2", row.half), ("double", "2n", row.double))


def _length_cell(row: LengthRow) -> str:
    if row.variant is None:
        return f"all constructive n={row.n_bits}"
    return cell_name(row.variant, row.n_bits)


def _parameters_kind(cells: Cells) -> Kind:
    found = []
    for row in published().cost:
        runs = cells.runs(row.variant, 64)
        sizes = sorted(set(runs["n_parameters"]))
        verdict = MISSING
        if sizes:
            verdict = AGREES if sizes == [row.n_parameters] else DIFFERS
        found.append(
            Comparison(
                "parameters",
                cell_name(row.variant, 64),
                " or ".join(map(str, sizes)) or "–",
                str(row.n_parameters),
                verdict,
                tuple(runs["folder"]),
            )
        )
    return Kind("parameters", "equality", tuple(found))


def _kinds(cells: Cells, alpha: float) -> list[Kind]:
    paper = published()
    successes = _fisher_kind(
        "successes",
        "Fisher, Holm",
        alpha,
        (
            (cell_name(row.counted, n), cells.runs(row.counted, n), (k, RUNS_PER_CELL), True)
            for row in paper.successes
            for n, k in row.successes.items()
        ),
    )
    return [
        successes,
        _together_kind(successes, alpha),
        _interval_kind(
            "accuracy",
            "Welch intervals",
            alpha,
            [
                _measured_mean(
                    cell_name(row.variant, n), cells.runs(row.variant, n), "max_accuracy", theirs
                )
                for row in paper.accuracy
                for n, theirs in row.accuracy.items()
            ],
        ),
        _interval_kind(
            "epochs",
            "median ratios",
            alpha,
            _measured_epochs(cells),
            math.exp,
        ),
        _fisher_kind(
            "encodings",
            "Fisher, Holm",
            alpha,
            (
                (
                    f"{row.positions} n={row.n_bits}",
                    positions_runs(cells, row.positions, row.n_bits),
                    (row.successes, row.runs),
                    _ablation_ready(cells, row),
                )
                for row in paper.positions
            ),
        ),
        _interval_kind("length shift", "Welch intervals", alpha, _measured_lengths(cells)),
        _parameters_kind(cells),
    ]


def compare(cells: Cells, alpha: float = 0.05) -> Agreement:
    """Our runs against the published numbers; `alpha` is the chance of a false alarm overall."""
    if not 0 < alpha < 1:
        raise SpecError(f"alpha must lie between 0 and 1, got {alpha}; 0.05 is usual")
    # How many kinds share alpha depends on the data's presence alone, which any share shows.
    present = _kinds(cells, alpha)
    testing = sum(kind.smallest is not None for kind in present)
    kinds = _kinds(cells, alpha / testing) if testing else present
    of_paper = cells.by_cell.of(
        Cell(row.counted, n) for row in published().successes for n in row.successes
    )
    return Agreement(alpha, tuple(kinds), standing(of_paper))
