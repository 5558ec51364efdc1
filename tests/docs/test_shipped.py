"""What ships in packed stores: its card counts it; its certificates are those of the records."""

import polars as pl
import pytest
from tests.support.paths import RESULTS, ROOT

import ithbit
from ithbit.store.packed import opened, pack

WORDS = ("refuted", "not refuted", "right on all inputs", "proved on all inputs")
CARD = (RESULTS / "weights" / "README.md").read_text(encoding="utf-8")
STORES = sorted(RESULTS.glob("**/*.zip"))


@pytest.mark.parametrize("kind", ["uniform", "mixed", "blocks"])
def test_the_card_counts_the_verdicts(kind: str) -> None:
    runs = ithbit.runs(RESULTS / "weights" / f"{kind}.zip")
    counts = [runs.filter(verification=word).height for word in WORDS]
    cells = [f"`{kind}.zip`", runs.height, *counts, runs.height - sum(counts)]
    assert f"| {' | '.join(map(str, cells))} |" in CARD
    sizes = runs.select("d_model", "n_bits", "seed")
    assert set(sizes["d_model"]) == {16}
    assert set(sizes["n_bits"]) == {16, 32, 64}
    assert set(sizes["seed"]) == set(range(5))


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.stem)
def test_packing_again_gives_the_same_file(store, tmp_path) -> None:
    assert pack(opened(store), tmp_path / "again.zip").read_bytes() == store.read_bytes()
    proved = ithbit.runs(store).filter(pl.col("verification") == WORDS[-1])
    assert proved.height
    assert proved["certificate_sha256"].str.len_chars().eq(64).all()


def test_the_rows_of_what_was_trained_and_proved_are_the_runs_that_ship() -> None:
    folder = RESULTS / "trained_and_proved"
    rows, runs = pl.read_csv(folder / "runs.csv"), ithbit.runs(folder / "weights.zip")
    both = rows.join(runs, on="run_id", suffix="_shipped")
    assert both.height == rows.height == runs.height
    for name in ("epochs", "first_solved_epoch", "final_loss"):
        assert both[name].to_list() == both[f"{name}_shipped"].to_list()
    assert not list(ROOT.glob("results/weights/*/result.json"))  # packed, not beside
