"""Which shipped runs are proved right on all inputs, and what it takes.

    python experiments/proofs.py results/weights/uniform results/weights/mixed -o results/proofs
    python experiments/proofs.py STORE --task rhi --family softmax-full --n 64 --seconds 60

For every solved run of the stores that its blocks have bounds for: a proof is sought as
`ithbit verify --prove` does it, in real arithmetic on the stored weights, and its certificate is
checked once more. One row a run in runs.csv: outcome, least margin proved on all inputs, least
margin met by the search for the proof, least one that `ithbit verify` observed in float32, share
of all inputs closed, nodes, leaves, seconds of the search, CPU seconds of the search and the first
check, and seconds of another check. Stores stay as they are; certificates are kept only where a
folder for them is given.
"""

import argparse
import csv
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ithbit.errors import StoreError
from ithbit.prove.certificate import confirmed
from ithbit.prove.runs import attempt
from ithbit.store.writing import write_text
from ithbit.theory.certificate_file import read_certificate
from ithbit.verify.verify import finished_folders, read_result, read_run, recorded


def row_of(folder: Path, seconds: float, certificates: Path) -> dict[str, Any] | None:
    """What came of one run; None for one without bounds, or that is not solved."""
    result = read_result(folder)
    run, weights = read_run(folder)
    if result["max_accuracy"] != 1.0:
        return None
    file = certificates / f"{folder.name}.json"
    cpu = time.process_time()
    proof, _ = attempt(run, weights, file, seconds)
    cpu = time.process_time() - cpu
    if proof.outcome == "no bounds":
        return None
    started = time.perf_counter()
    if proof.certificate:
        confirmed(read_certificate(file), weights)
    record = recorded(folder) or {}
    model = run.model
    return {
        "run_id": run.run_id,
        "task": model.task,
        "family": model.family,
        "layers": model.n_layers,
        "n": model.n_bits,
        "examples": run.protocol.examples,
        "seed": run.seed,
        "tried": record.get("verdict", ""),
        "proof": proof.outcome,
        "least_proved": proof.least_margin,
        "least_found": proof.least_found,
        "least_observed": (record.get("worst") or {}).get("margin"),
        "share_closed": proof.share_closed,
        "nodes": proof.nodes,
        "leaves": proof.leaves,
        "seconds": round(proof.seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "check_seconds": round(time.perf_counter() - started, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--task")
    parser.add_argument("--family")
    parser.add_argument("--n", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each proof")
    parser.add_argument("--certificates", type=Path, help="folder to keep the certificates in")
    parser.add_argument("-o", "--out", type=Path, help="folder for runs.csv")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        kept = given.certificates or Path(scratch)
        kept.mkdir(parents=True, exist_ok=True)
        for store in given.stores:
            for folder in finished_folders(store):
                run = read_run(folder)[0]
                model = run.model
                wanted = (given.task, given.family, given.n, given.seed)
                have = (model.task, model.family, model.n_bits, run.seed)
                if any(a not in (None, b) for a, b in zip(wanted, have, strict=True)):
                    continue
                if (row := row_of(folder, given.seconds, kept)) is not None:
                    rows.append(row)
                    print(*row.values(), flush=True)
    if not rows:
        raise StoreError("no run of these stores is solved and has bounds")
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[k] for k in ("task", "family", "layers", "n")), []).append(row)
    for cell, own in cells.items():
        proved = [row for row in own if row["proof"] == "proved"]
        gaps = [row["least_found"] - row["least_proved"] for row in proved]
        print(
            *cell,
            f"{len(proved)} of {len(own)} proved",
            f"seconds median {statistics.median(r['seconds'] for r in own):.1f}",
            f"most {max(r['seconds'] for r in own):.1f}",
            f"of a CPU {statistics.median(r['cpu_seconds'] for r in own):.1f}",
            f"most {max(r['cpu_seconds'] for r in own):.1f}",
            f"nodes median {statistics.median(r['nodes'] for r in own):.0f}",
            f"widest gap {max(gaps, default=float('nan')):.4f}",
        )
    if given.out:
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        with tempfile.TemporaryFile("w+", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
            file.seek(0)
            print(write_text(given.out / "runs.csv", file.read()), file=sys.stderr)


if __name__ == "__main__":
    main()
