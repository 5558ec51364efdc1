"""For each variant: what theory proves, what training found, and the verdicts on those weights.

*Proved* has two meanings here. Of a block: that some weights of exactly these sizes solve the task,
or that none do. Of a run: that its own trained weights do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ithbit.families import family_named
from ithbit.published import RUNS_PER_CELL, Variant, published
from ithbit.reporting.cells import Cells
from ithbit.reporting.page.page_tables import RowLabel, row_label
from ithbit.reporting.tables.table import NOTHING
from ithbit.theory.architecture import architecture
from ithbit.theory.summary_table import table as derived_table
from ithbit.theory.verdicts import Verdict
from ithbit.theory.verdicts import verdict as verdict_of


@dataclass(frozen=True)
class TheoryRow:
    """A variant at the longest n that it was trained at: how many layers suffice by the paper's
    theorems, what is proved of its block and why, our runs and the published count."""

    task: str
    label: RowLabel
    n_layers: int
    least_layers: str
    proved: str
    because: str
    n_bits: int
    solved: int
    runs: int
    counts: tuple[int, ...]  # of solved runs, for each verdict
    published: str


def theory_rows(cells: Cells) -> Iterator[TheoryRow]:
    """Every variant that has runs, the paper's first and in its order."""
    derived = {(entry.family, entry.task): entry.layers_text for entry in derived_table()}
    printed = {
        (variant, n): f"{k}/{RUNS_PER_CELL}"
        for row in published().successes
        for variant in row.variants
        for n, k in row.successes.items()
    }
    for variant in cells.variants():
        n_bits = max(n for n in cells.lengths() if not cells.runs(variant, n).is_empty())
        formal = family_named(variant.family).formal or ""
        verdict = _verdict(cells, variant, n_bits)
        ours = cells.verdict_counts([variant], n_bits)
        yield TheoryRow(
            variant.task.upper(),
            row_label(cells.label(variant)),
            variant.n_layers,
            derived.get((formal, variant.task), NOTHING),
            NOTHING if verdict is None else _proved(verdict),
            "" if verdict is None else _because(verdict),
            n_bits,
            ours.solved,
            ours.runs,
            tuple(ours.counts.values()),
            printed.get((variant, n_bits), NOTHING),
        )


def _verdict(cells: Cells, variant: Variant, n_bits: int) -> Verdict | None:
    """What is proved of a block of these sizes; None where no theorem here covers it."""
    run = cells.runs(variant, n_bits).row(0, named=True)
    if not family_named(variant.family).formal or run["positions"] != "polynomial":
        return None
    sizes = {"width": "d_model", "heads": "n_heads", "hidden": "d_ff", "state": "d_state"}
    values = {name: run[column] for name, column in sizes.items()}
    arch = architecture(variant.family, "trained", n_layers=variant.n_layers, **values)
    return verdict_of(variant.task, arch, n_bits)


def _proved(verdict: Verdict) -> str:
    if verdict.answer == "possible":
        return f"possible for every n, margin ≥ {verdict.every_n}"
    if verdict.n_star is None:
        return "open"
    word = "not ruled out up to" if verdict.answer == "open" else "impossible past"
    return f"{word} n = {verdict.n_star:,}"


def _because(verdict: Verdict) -> str:
    return verdict.because + (f" ({verdict.theorem} of the paper)" if verdict.theorem else "")
