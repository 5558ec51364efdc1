"""Whether our runs agree with the published numbers, cell by cell and overall.

Eight kinds of comparison, each over the cells of one table:

- *successes*: Fisher's exact test on each count, Holm's correction over the cells;
- *successes one way*: one exact test over all those cells at once, of Mantel and Haenszel's kind
  (`directed_exact`), another over the constructive ones and one over the stress tests. The
  hypothesis: in every cell our runs succeed with the same probability as the paper's. It is tested
  against ours succeeding more often, or less often, throughout, which single cells of five runs
  cannot show: after Holm's correction over 92 cells even 0/5 against 5/5 is no evidence;
- *successes together*: the same hypothesis against differences of any sign (`omnibus_exact`). It
  sees cells that are far off, and hardly anything of a small shift of all cells;
- *accuracy*: Welch's interval for the difference of mean maximum accuracies, simultaneous over the
  cells (Bonferroni), widened by the rounding of the published mean and standard deviation;
- *epochs*: an interval for the ratio of medians, assuming log epochs normal with our spread on
  both sides (the paper gives no spread), simultaneous over the cells;
- *encodings*: Fisher's exact test with Holm's correction over the ablation's ten counts;
- *length shift*: Welch's interval for accuracy at n/2 and at 2n, simultaneous over the cells;
- *parameters*: equal or not.

A cell that pools several configurations is judged only once each has as many runs as the paper's:
before that, ours would be a different mixture.

`alpha` is split equally among the kinds that test something, so that a faithful reproduction is
called a disagreement with probability at most alpha, as far as the intervals' approximations hold
and runs are independent. No evidence of a difference does not prove that there is none, least of
all in a single cell: `detects` says what would have been called different.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import compress

import polars as pl

from ithbit.display import pluralize, upper_text
from ithbit.errors import SpecError
from ithbit.families import family_named
from ithbit.published import (
    RUNS_PER_CELL,
    CostRow,
    LengthRow,
    Mean,
    PositionsRow,
    Variant,
    published,
)
from ithbit.reporting.cells import Cell, Cells, full_protocol_runs, median, solved, summary
from ithbit.reporting.comparison.agreement import (
    AGREES,
    DIFFERS,
    MISSING,
    ONE_WAY,
    TOO_FEW,
    Agreement,
    Comparison,
    Joint,
    Kind,
    beyond,
)
from ithbit.reporting.comparison.statistics import (
    Count,
    Difference,
    Directed,
    directed_exact,
    fisher_exact,
    fisher_limits,
    holm,
    median_ratio,
    omnibus_exact,
    welch,
)
from ithbit.reporting.tables.table import NOTHING, spread_text
from ithbit.reporting.verdict_counts import count_verdicts

# A comparison before the correction over its kind, and what it is judged by: a difference with its
# interval, a published count, the sum over all cells, or only what the comparison has itself.
Measured = tuple[Comparison, Difference | Count | Directed | None]


def cell_name(variant: Variant, n_bits: int) -> str:
    """The name of a variant's cell at one length in a comparison."""
    label = family_named(variant.family).label
    return f"{variant.task.upper()} {label} L={variant.n_layers} n={n_bits}"


def _counted(
    kind: str, cell: str, runs: pl.DataFrame, theirs: Count, ready: bool = True
) -> Comparison:
    """Our count with a published one; `ready` says whether it can be judged yet."""
    printed = f"{theirs[0]}/{theirs[1]}"
    if runs.is_empty():
        return Comparison(kind, cell, NOTHING, printed, MISSING)
    counts = count_verdicts(runs)
    return Comparison(
        kind,
        cell,
        f"{counts.solved}/{counts.runs}",
        printed,
        AGREES if ready else TOO_FEW,
        tuple(runs["folder"]),
        counts.runs < theirs[1],
        fisher_exact((counts.solved, counts.runs), theirs) if ready else None,
        standing=counts,
    )


def _joint(name: str, which: str, successes: list[Comparison], theirs: list[Count]) -> Measured:
    """Several cells of the main table at once, against their published counts."""
    all_counts = [each.standing for each in successes]
    counts = [((s.solved, s.runs), k) for s, k in zip(all_counts, theirs, strict=True) if s]
    kind = "" if which == "all" else f"{which} "
    if not counts:
        return Comparison(name, f"{kind or 'all '}cells", NOTHING, _total(theirs), MISSING), None
    directed = directed_exact(counts) if name == ONE_WAY else None
    comparison = Comparison(
        name,
        f"{'all ' if which == 'all' else ''}{pluralize(len(counts), f'{kind}cell')} with runs",
        _total([ours for ours, _ in counts]),
        _total([count for _, count in counts]),
        AGREES,
        incomplete=any(each.incomplete or each.verdict == MISSING for each in successes),
        p_value=directed.p_value if directed else omnibus_exact(counts),
        detects="cells far off",
    )
    return comparison, directed


def _total(counts: list[Count]) -> str:
    return f"{sum(k for k, _ in counts)}/{sum(m for _, m in counts)}"


def _judged_by_interval(
    kind: str,
    cell: str,
    texts: tuple[str, str],
    runs: pl.DataFrame,
    fewer: bool,
    difference: Difference | None,
) -> Measured:
    """A cell judged by an interval; without a difference it has no runs, or too few."""
    verdict = MISSING if runs.is_empty() else TOO_FEW
    fewer = fewer and difference is not None
    return Comparison(kind, cell, *texts, verdict, tuple(runs["folder"]), fewer), difference


def _mean(
    kind: str,
    cell: str,
    runs: pl.DataFrame,
    column: str,
    theirs: Mean,
    fewer: bool,
    ready: bool = True,
) -> Measured:
    ours, difference = summary(runs, column), None
    if ours is not None and ours.sd is not None and ready:
        # The published sd may be half a unit larger than printed; its mean, half a unit off.
        sd = (theirs.sd or 0.0) + theirs.half_unit
        difference = welch(ours.mean, ours.sd, ours.runs, theirs.mean, sd, theirs.runs)
        difference = replace(difference, slack=theirs.half_unit)
    our_text, printed = spread_text(ours, theirs.decimals + 1), spread_text(theirs, theirs.decimals)
    texts = our_text or NOTHING, printed or NOTHING
    return _judged_by_interval(kind, cell, texts, runs if ours else runs.clear(), fewer, difference)


def _accuracy(cells: Cells, variant: Variant, n_bits: int, theirs: Mean) -> Measured:
    name, runs = cell_name(variant, n_bits), cells.runs(variant, n_bits)
    return _mean("accuracy", name, runs, "max_accuracy", theirs, runs.height < theirs.runs)


def _epochs(cells: Cells, variant: Variant, row: CostRow) -> Measured:
    runs = full_protocol_runs(cells.runs(variant, 64))
    epochs, middle = list(map(float, runs["epochs"].drop_nulls())), median(runs, "epochs")
    difference = None
    if len(epochs) > 1:
        difference = median_ratio(epochs, row.median_epochs, row.runs, 0.5)
    texts = NOTHING if middle is None else f"{middle:g}", str(row.median_epochs)
    fewer = len(epochs) < row.runs
    return _judged_by_interval("epochs", cell_name(variant, 64), texts, runs, fewer, difference)


def _lengths(
    cells: Cells, n_bits: int, variant: Variant | None, row: LengthRow
) -> Iterator[Measured]:
    """Both sides of a row of length-shifted accuracies, of one variant or of all together."""
    runs = cells.length_runs(n_bits, variant)
    ready = variant is not None or all(
        full_protocol_runs(cells.runs(each, n_bits)).height >= RUNS_PER_CELL
        for each in published().cost
    )
    cell = cell_name(variant, n_bits) if variant else f"all constructive n={n_bits}"
    # Complete once as many have run: how many of them succeed is not ours to choose.
    fewer = runs.height < row.runs
    for where, column, theirs in (
        ("n/2", "half_length_accuracy", row.half),
        ("2n", "double_length_accuracy", row.double),
    ):
        name = f"{cell} at {where}"
        yield _mean("length shift", name, solved(runs), column, theirs, fewer, ready)


def _encoding(cells: Cells, row: PositionsRow) -> Comparison:
    """A count of the ablation, judged once every configuration has as many runs as the paper's."""
    paper, runs = published(), cells.positions_runs(row.positions, row.n_bits)
    ready = all(
        cells.runs(v, row.n_bits, row.positions).height >= len(paper.positions_seeds)
        for v in paper.positions_variants
        if family_named(v.family).takes(row.positions)
    )
    name, theirs = f"{row.positions} n={row.n_bits}", (row.successes, row.runs)
    return _counted("encodings", name, runs, theirs, ready)


def _parameters(cells: Cells, variant: Variant, row: CostRow) -> Comparison:
    runs = cells.runs(variant, 64)
    sizes = sorted(set(runs["n_parameters"].drop_nulls()))
    return Comparison(
        "parameters",
        cell_name(variant, 64),
        " or ".join(map(str, sizes)) or NOTHING,
        str(row.n_parameters),
        (AGREES if sizes == [row.n_parameters] else DIFFERS) if sizes else MISSING,
        tuple(runs["folder"]),
        detects="any other number",
    )


def _kinds(cells: Cells) -> Iterator[tuple[str, list[Measured]]]:
    """How each kind is judged, and its cells."""
    paper = published()
    main = {
        (row.counted, n): (k, RUNS_PER_CELL)
        for row in paper.successes
        for n, k in row.successes.items()
    }
    successes = [
        _counted("successes", cell_name(*cell), cells.runs(*cell), theirs)
        for cell, theirs in main.items()
    ]
    theirs = list(main.values())
    yield "Fisher, Holm", list(zip(successes, theirs, strict=True))
    groups: dict[str, list[bool]] = {"all": [True] * len(main)}
    for group in ("constructive", "stress test"):
        groups[group] = [row.group == group for row in paper.successes for _ in row.successes]
    yield (
        "exact, Holm",
        [
            _joint(ONE_WAY, group, list(compress(successes, own)), list(compress(theirs, own)))
            for group, own in groups.items()
        ],
    )
    yield "one exact test", [_joint("successes together", "all", successes, theirs)]
    yield (
        "Welch intervals",
        [
            _accuracy(cells, variant, n, theirs)
            for variant, row in paper.accuracy.items()
            for n, theirs in row.items()
        ],
    )
    yield "median ratios", [_epochs(cells, *row) for row in paper.cost.items()]
    encodings = paper.positions
    yield "Fisher, Holm", [(_encoding(cells, row), (row.successes, row.runs)) for row in encodings]
    shifted = [
        *((n, None, row) for n, row in paper.length_by_n.items()),
        *((64, variant, row) for variant, row in paper.length_by_family.items()),
    ]
    yield "Welch intervals", [each for row in shifted for each in _lengths(cells, *row)]
    yield "equality", [(_parameters(cells, *row), None) for row in paper.cost.items()]


def _judged(method: str, measured: list[Measured], alpha: float) -> Kind:
    """Verdicts corrected over the kind: by Bonferroni for intervals, by Holm for other tests."""
    tests = sum(_tests(each) for each in measured)
    adjusted = iter(holm([c.p_value for c, _ in measured if c.p_value is not None]))
    comparisons = []
    for comparison, basis in measured:
        if isinstance(basis, Difference):
            low, high = basis.interval(alpha / tests)
            ratio = comparison.kind == "epochs"
            comparison = replace(
                comparison,
                verdict=AGREES if low <= 0 <= high else DIFFERS,
                p_value=basis.p_value,
                adjusted=min(1.0, tests * basis.p_value),
                interval=(_ratio(low), _ratio(high)) if ratio else (low, high),
                detects=_reach((high - low) / 2, ratio),
            )
        elif comparison.p_value is not None:
            p_value = next(adjusted)
            verdict = DIFFERS if p_value <= alpha else AGREES
            comparison = replace(comparison, adjusted=p_value, verdict=verdict)
            if isinstance(basis, Directed):
                comparison = replace(comparison, detects=beyond(basis.limits(alpha / tests)))
            elif basis is not None and comparison.standing is not None:
                runs = comparison.standing.runs
                limits = fisher_limits(runs, basis, alpha / tests)
                comparison = replace(comparison, detects=beyond(limits, runs))
        comparisons.append(comparison)
    return Kind(comparisons[0].kind, method, tuple(comparisons))


def _tests(measured: Measured) -> bool:
    comparison, basis = measured
    return isinstance(basis, Difference) or comparison.p_value is not None


def _ratio(log: float) -> float:
    """The ratio with this logarithm; infinite past the largest float, as two runs may leave it."""
    return math.exp(log) if log < math.log(sys.float_info.max) else math.inf


def _reach(reach: float, ratio: bool) -> str:
    """The difference of means, or the ratio of medians, beyond which an interval misses none."""
    if ratio:
        factor = _ratio(reach)
        return f"a factor of {upper_text(factor, 3)} or more" if factor < math.inf else "no factor"
    return f"{upper_text(reach, 2)} or more"


def compare(cells: Cells, alpha: float = 0.05) -> Agreement:
    """Our runs against the published numbers; `alpha` is the chance of a false alarm overall."""
    if not 0 < alpha < 1:
        raise SpecError(f"alpha must lie between 0 and 1, got {alpha}; 0.05 is usual")
    kinds = list(_kinds(cells))
    testing = sum(any(map(_tests, comparisons)) for _, comparisons in kinds)
    level = alpha / max(1, testing)
    judged = [_judged(method, comparisons, level) for method, comparisons in kinds]
    joint = [
        Joint(comparison, basis.expected, basis.p_fewer, basis.p_more)
        for (_, comparisons), kind in zip(kinds, judged, strict=True)
        for (_, basis), comparison in zip(comparisons, kind.comparisons, strict=True)
        if isinstance(basis, Directed)
    ]
    of_paper = cells.of(
        Cell(row.counted, n) for row in published().successes for n in row.successes
    )
    notes = (*cells.notes(), *cells.early_notes())
    return Agreement(alpha, tuple(judged), count_verdicts(of_paper), notes, tuple(joint))
