"""What was trained with consistency and proved: the pages count the rows that ship."""

import polars as pl
from tests.docs.test_results import table, variant
from tests.support.paths import RESULTS, ROOT

from ithbit.display import lower_text
from ithbit.store.records import PROVED

HEAD = "trained with consistency"
ROWS = pl.read_csv(RESULTS / "trained_and_proved" / "runs.csv", infer_schema_length=None)


def test_the_table_counts_the_proved_runs() -> None:
    shown = table("proofs.md", HEAD)
    for label, *counts, margins, shares in shown:
        task, family, layers = variant(label)
        own = ROWS.filter(task=task, family=family, layers=layers)
        for n, count in zip((16, 32, 64, 128), counts, strict=True):
            runs = own.filter(n=n)
            proved = runs.filter(verdict=PROVED).height
            assert count == (f"{proved} of {runs.height}" if runs.height else "–"), (label, n)
        at_64 = own.filter(pl.col("n") == 64, pl.col("verdict") == PROVED).sort("least_proved")
        ends = at_64["least_proved"].to_list()
        assert margins == " to ".join(lower_text(ends[k], 3) for k in (0, -1) if ends), label
        share = (at_64["least_proved"] / at_64["least_found"]).sort().to_list()
        assert shares == " to ".join(f"{100 * share[k]:.0f} %" for k in (0, -1) if share), label
    assert len(shown) == 8


def test_the_first_page_counts_them_at_64_bits() -> None:
    own = ROWS.filter(pl.col("n") == 64, pl.col("family") != "mamba2", pl.col("seed") < 5)
    assert set(own.group_by("task", "family").len()["len"]) == {5}
    proved = own.filter(verdict=PROVED).height
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{proved} of {own.height} runs trained with `--consistency 1`" in text
    assert own["solved"].all()
