"""For each entry side by side: what theory proves, what training found, and how that stands.

*Proved* has two meanings here. Of a block: that some weights of exactly these sizes solve the task,
or that none do. Of a run: that its own trained weights do.
"""

from collections.abc import Iterator

from ithbit.families import family_named
from ithbit.published import RUNS_PER_CELL, Variant, published
from ithbit.reporting.cells import Cells
from ithbit.reporting.tables.table import NOTHING
from ithbit.theory.architecture import architecture
from ithbit.theory.summary_table import table as derived_table
from ithbit.theory.verdicts import Verdict
from ithbit.theory.verdicts import verdict as verdict_of


def entries(cells: Cells) -> Iterator[tuple[Variant, int, str, Verdict | None, str]]:
    """Every variant that has runs, at the longest n that it was trained at; the paper's first and
    in its order.

    Each with that n, how many layers suffice by the paper's theorems, what is proved of its block,
    and the published count.
    """
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
        least = derived.get((formal, variant.task), NOTHING)
        theirs = printed.get((variant, n_bits), NOTHING)
        yield variant, n_bits, least, _verdict(cells, variant, n_bits), theirs


def _verdict(cells: Cells, variant: Variant, n_bits: int) -> Verdict | None:
    """What is proved of a block of these sizes; None where no theorem here covers it."""
    run = cells.runs(variant, n_bits).row(0, named=True)
    if not family_named(variant.family).formal or run["positions"] != "polynomial":
        return None
    sizes = {"width": "d_model", "heads": "n_heads", "hidden": "d_ff", "state": "d_state"}
    given = {name: run[column] for name, column in sizes.items()}
    arch = architecture(variant.family, "trained", n_layers=variant.n_layers, **given)
    return verdict_of(variant.task, arch, n_bits)
