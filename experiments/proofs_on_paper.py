"""Enter into an export the proofs of the same runs in a store that has their weights.

    python experiments/proofs_on_paper.py results/paper results/weights/uniform.zip

A run is the same only if its specification, every loss, accuracy and epoch are equal to the last
bit; else this stops and writes nothing. Only verdicts *proved on all inputs* are taken, whose
certificates the store has, with their digests.
"""

import sys
from pathlib import Path

import polars as pl

import ithbit
from ithbit.store.records import PROVED
from ithbit.store.writing import write_output

# What may differ between two trainings of one run: when, where, and what was verified later.
MAY_DIFFER = {
    *("seconds_per_epoch", "evaluation_seconds", "started_at", "finished_at", "environment"),
    *("verification", "certificate_sha256"),
}


def differing(export: pl.DataFrame, store: pl.DataFrame) -> list[str]:
    """The columns in which runs of both differ though they must not."""
    both = export.join(store, on="run_id", suffix="_store")
    names = [name for name in export.columns if name not in MAY_DIFFER | {"run_id"}]
    return [name for name in names if both[name].ne_missing(both[f"{name}_store"]).any()]


def main(export: Path, store: Path) -> None:
    proved = ithbit.runs(store).filter(pl.col("verification") == PROVED)
    if names := differing(ithbit.runs(export), proved):
        sys.exit(f"the runs of {store} are not those of {export}: they differ in {names}")
    file = export / "runs.csv"
    rows = pl.read_csv(file, infer_schema=False)  # every value as it is written
    if "certificate_sha256" not in rows.columns:
        empty = pl.lit(None, pl.String).alias("certificate_sha256")
        rows = rows.with_columns(empty)
    found = proved.select("run_id", "verification", "certificate_sha256")
    rows = rows.update(found, on="run_id")
    write_output(file, rows.write_csv().encode())
    print(f"{rows.filter(pl.col('verification') == PROVED).height} proved runs in {file}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
