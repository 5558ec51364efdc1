"""The README: its numbers are those of the results and of the code."""

import re

import polars as pl
import pytest
from tests.support.paths import RESULTS, ROOT, WEIGHTS

import ithbit
from ithbit.display import lower_text
from ithbit.published import published
from ithbit.store.frame import load_rows
from ithbit.store.reading import read_verification
from ithbit.sweeps.presets import paper

TEXT = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_it_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [("uniform", "Of {} runs that solve the paper"), ("blocks", "of equal bits, {1} of {0} do")],
)
def test_the_finding_is_that_of_the_results(kind: str, sentence: str) -> None:
    rows = pl.read_csv(RESULTS / "everywhere" / kind / "runs.csv").filter("solved", n_bits=64)
    rows = rows.filter(~((pl.col("task") == "rhi") & (pl.col("family") == "softmax-causal")))
    refuted = rows.filter(verification="refuted").height
    assert sentence.format(rows.height, refuted) in TEXT
    if kind == "uniform":
        assert f"{refuted} answer some input wrong" in TEXT


def test_the_two_models_are_as_said() -> None:
    names = re.findall(r"ithbit verify (\S+)", TEXT)
    records = []
    for name in names:
        (folder,) = (WEIGHTS / "uniform").glob(f"{name}-*")
        found = read_verification(str(folder))
        assert found is not None
        records.append(found.found)
    refuted, proved = records
    assert refuted.verdict == "refuted"
    assert refuted.worst.bits == "0" * 63 + "1"
    assert proved.verdict == "proved on all inputs"
    assert f"at least {lower_text(proved.proof.least_margin, places=2)}," in TEXT


def test_counts_and_the_joint_test() -> None:
    assert f"the {len(paper())} runs" in TEXT
    cells = {(row.task, row.families[0], row.n_layers) for row in published().successes}
    assert f"all {4 * len(cells)} cells" in TEXT
    joint = ithbit.compare(RESULTS / "paper").joint[0].comparison
    assert f"(p = {joint.p_value:.2g})" in TEXT
    speeds = " ".join((ROOT / "docs" / "kernels.md").read_text(encoding="utf-8").split())
    for number in ("176", "661"):
        assert number in TEXT
        assert number in speeds


def test_the_table_of_the_docs_is_that_of_the_command() -> None:
    store = RESULTS / "paper"
    made = str(ithbit.table("main", store=store, show="both", output_format="markdown"))
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert "\n".join(line for line in made.splitlines() if line.startswith("|")) in page
    assert load_rows(store).rows.height == 2106
