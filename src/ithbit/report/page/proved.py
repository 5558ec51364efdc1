"""For each entry side by side: what theory proves, what training found, and how that stands.

*Proved* has two meanings here. Of a block: that some weights of exactly these sizes solve the task,
or that none do. Of a run: that its own trained weights do.
"""

from typing import Any

from ithbit.families import family_named
from ithbit.published import RUNS_PER_CELL, Variant, published
from ithbit.report.cells import Cells
from ithbit.report.tables.table import NOTHING
from ithbit.theory.summary_table import table as derived_table
from ithbit.theory.verdicts import Verdict
from ithbit.theory.verdicts import verdict as verdict_of


def entries(cells: Cells) -> list[dict[str, Any]]:
    """Every variant that has runs, at the longest n that it was trained at; the paper's first and
    in its order."""
    derived = {(entry.family, entry.task): entry.layers_text for entry in derived_table()}
    printed = {
        (variant, n): f"{k}/{RUNS_PER_CELL}"
        for row in published().successes
        for variant in row.variants
        for n, k in row.successes.items()
    }
    found = []
    for variant in cells.variants():
        n_bits = max(n for v, n, positions in cells.by_cell if v == variant)
        verdict = _verdict(cells, variant, n_bits)
        formal = family_named(variant.family).formal
        found.append(
            {
                "variant": variant,
                "label": cells.label(variant),
                "n_bits": n_bits,
                # Layers that suffice, by the paper's theorems.
                "least": derived.get((formal or "", variant.task), NOTHING),
                "proved": _said(verdict) if verdict else NOTHING,
                "because": f"{verdict.because}{_beside(verdict)}" if verdict else "",
                "standing": cells.standing([variant], n_bits),
                "published": printed.get((variant, n_bits), NOTHING),
            }
        )
    return found


def _verdict(cells: Cells, variant: Variant, n_bits: int) -> Verdict | None:
    """What is proved of a block of these sizes; None where no theorem here covers it."""
    run = cells.runs(variant, n_bits).row(0, named=True)
    if not family_named(variant.family).formal or run["positions"] != "polynomial":
        return None
    sizes = {"width": "d_model", "heads": "n_heads", "hidden": "d_ff", "state": "d_state"}
    given = {name: run[column] for name, column in sizes.items()}
    asked = (variant.task, variant.family, variant.n_layers, n_bits)
    return verdict_of(*asked, model="trained", **given)


def _said(verdict: Verdict) -> str:
    if verdict.answer == "possible":
        return f"possible for every n, margin ≥ {verdict.every_n}"
    past = f"impossible past n = {verdict.n_star:,}" if verdict.n_star is not None else ""
    return past if verdict.answer == "impossible" else ", ".join(filter(None, ["open", past]))


def _beside(verdict: Verdict) -> str:
    return f" ({verdict.theorem} of the paper)" if verdict.theorem else ""
