"""docs/heads.md: its numbers are those of the results, and a run measured again gives its row."""

import runpy

import polars as pl
import pytest
import torch
from tests.support.paths import RESULTS, ROOT, WEIGHTS

import ithbit

PAGE = " ".join((ROOT / "docs" / "heads.md").read_text(encoding="utf-8").split())
ROWS = pl.read_csv(RESULTS / "heads.csv")
TRAINED = ROWS.filter(pl.col("weights") != "explicit")


def span(rows: pl.DataFrame, share: str) -> str:
    return f"{rows[share].min():.2f} to {rows[share].max():.2f}"


def test_the_page_says_what_the_results_say() -> None:
    rhi = TRAINED.filter(task="rhi", family="softmax-full")
    lhi = TRAINED.filter(pl.col("family").str.starts_with("softmax"), task="lhi")
    linear = TRAINED.filter(pl.col("family").str.starts_with("linear"))
    causal, full = (lhi.filter(family=f"softmax-{kind}") for kind in ("causal", "full"))
    for words in (
        f"in the {len(TRAINED)} attention runs",
        f"put {span(rhi, 'end_to_bit')} there",
        f"{len(rhi)} runs are not refuted",
        f"median {causal['bit_to_index'].median():.2f} for causal and "
        f"{full['bit_to_index'].median():.2f} for full",
        f"{(lhi['no_ff_first'] < 0.65).sum()} of {len(lhi)} are right on less",
        f"puts {span(lhi, 'end_to_bit')} on the asked bit",
        f"put {span(linear, 'end_to_bit')} on the asked bit and {span(linear, 'end_to_index')}",
        f"{(linear['no_ff_last'] >= 0.99).sum()} of {len(linear)} trained runs stay",
    ):
        assert words in PAGE


@pytest.mark.usefixtures("library")
@torch.no_grad()
def test_measured_again() -> None:
    script = runpy.run_path(str(ROOT / "experiments" / "where_heads_look.py"))
    name = "lhi_n16_softmax-causal_L2d16h2_polynomial_s0"
    model = ithbit.load(name, store=WEIGHTS / "mixed", dtype="float64")
    (row,) = TRAINED.filter(
        weights="mixed", task="lhi", family="softmax-causal", n=16, seed=0
    ).to_dicts()
    for key, value in script["measure"](model, "lhi", 16, 256).items():
        assert value == pytest.approx(row[key], abs=1e-6)
