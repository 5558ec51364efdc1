"""Which runs are proved right on all inputs, and what it takes.

    python experiments/proofs.py results/weights/*.zip -o results/proofs
    python experiments/proofs.py STORE --task rhi --family softmax-full --n 64 --seconds 60
    python experiments/proofs.py results/weights/*.zip -o results/proofs --confirm

For every solved run of the stores whose blocks have bounds: seek a proof as `ithbit verify --prove`
does, in real arithmetic on the stored weights, and check its certificate. runs.csv gets one row per
run, written as soon as it is known; runs that have a row are skipped the next time, so that a long
list may be interrupted. Columns: outcome (proved, or bounded where no second implementation has
confirmed it), least margin on all inputs, least margin of the float32 run (one layer; by bounds
alone), least margin met by the search for the proof, least margin that `ithbit verify` observed in
float32, share of all inputs closed, nodes, leaves, share of all inputs that were tried one by one
in sound arithmetic, seconds of the search, CPU seconds of search and check, seconds of the check,
and how the certificate was checked. Stores are not changed; certificates are kept only if a folder
for them is given.

With --confirm nothing is searched: every certificate in the stores is checked, and the records
beside it and the rows say what came of it; rows whose certificate is not there become *bounded*.
"""

import argparse
import csv
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ithbit.display import lower_percent, lower_text
from ithbit.errors import StoreError
from ithbit.families import FAMILIES
from ithbit.spec import RunSpec
from ithbit.store.folder import keep_verification
from ithbit.store.packed import opened
from ithbit.store.reading import read_verification
from ithbit.store.records import Proof
from ithbit.store.writing import write_text
from ithbit.theory.certificate_file import read_certificate
from ithbit.verification.proofs.certificate import read_leaves
from ithbit.verification.proofs.kinds import kind_of
from ithbit.verification.proofs.run_proof import FILE, prove_run, search_proof
from ithbit.verification.proofs.two_layers import FEW
from ithbit.verification.stored_run import finished_folders, read_stored_run

Row = dict[str, Any]


def row_of(job: tuple[Path, float, Path]) -> Row | None:
    """The result for one run; None if it has no bounds or is not solved."""
    folder, seconds, certificates = job
    stored = read_stored_run(folder)
    if not stored.solved:
        return None
    run, weights = stored.spec, stored.weights
    file = certificates / f"{folder.name}.json"
    cpu, started = time.process_time(), time.perf_counter()
    proof, _ = search_proof(run, weights, file, seconds)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - started
    if kind_of(run.model) is None:  # weights that cannot be bounded still get a row
        return None
    tried = 0.0
    if proof.certificate and run.model.n_layers == 2:
        leaves, _ = read_leaves(read_certificate(file), run.model.n_bits)
        free = (leaves.bits < 0).sum(1)
        tried = (
            float(
                (
                    2.0
                    ** (free[free <= FEW[FAMILIES[run.model.family].kind]] + 1 - run.model.n_bits)
                ).sum()
            )
            / 2
        )
        tried /= run.model.n_bits
    record, model = stored.read_verification(), run.model
    return {
        "run_id": run.run_id,
        "task": model.task,
        "family": model.family,
        "layers": model.n_layers,
        "n": model.n_bits,
        "examples": run.protocol.examples,
        "seed": run.seed,
        "tried": record.found.verdict if record else "",
        "proof": proof.outcome,
        "least_proved": proof.least_margin,
        "least_float32": proof.least_float32,
        "least_found": proof.least_found,
        "least_observed": record.found.worst.margin if record else None,
        "share_closed": proof.share_closed,
        "nodes": proof.nodes,
        "leaves": proof.leaves,
        "share_tried": tried,
        "seconds": round(proof.seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "check_seconds": round(wall - proof.seconds, 2),
        "checked": proof.checked,
    }


def confirm(stores: list[Path], rows: list[Row]) -> Iterator[str]:
    """Check every certificate in the stores, and correct records and rows; a line for each."""
    checked: dict[str, Proof] = {}
    for folder in (each for store in stores for each in finished_folders(opened(store))):
        record = read_verification(str(folder))
        if record is None or not (folder / FILE).exists():
            continue
        said: list[str] = []
        fresh = prove_run(read_stored_run(folder), record, seconds=0, say=said.append)
        keep_verification(folder, fresh)
        proof = fresh.found.proof
        if proof is not None and not said:
            checked[record.run_id] = proof
        yield f"{folder.name}: {fresh.found.verdict} {' '.join(said)}"
    for row in rows:
        proof = checked.get(row["run_id"])
        if row["proof"] in ("proved", "bounded"):
            row["proof"] = proof.outcome if proof else "bounded"
        row["checked"] = proof.checked if proof else ""


def wanted(run: RunSpec, given: argparse.Namespace) -> bool:
    have = {"task": run.model.task, "family": run.model.family, "n": run.model.n_bits}
    have["seed"] = run.seed
    return all(getattr(given, name) in (None, value) for name, value in have.items())


def results(jobs: list[tuple[Path, float, Path]], workers: int) -> Iterator[Row]:
    """Rows as they become known, from single-threaded processes."""
    if workers == 1:
        yield from filter(None, map(row_of, jobs))
        return
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=1) as pool:
        yield from filter(None, pool.imap_unordered(row_of, jobs))


def read_rows(file: Path) -> list[Row]:
    """Rows of an earlier run of this script, numbers as they were written."""
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def write_rows(file: Path, rows: list[Row]) -> None:
    order = ("task", "family", "n", "examples", "seed")
    rows = sorted(
        rows, key=lambda row: tuple(int(row[k]) if k in ("n", "seed") else row[k] for k in order)
    )
    with tempfile.TemporaryFile("w+", newline="") as lines:
        writer = csv.DictWriter(lines, list(max(rows, key=len)), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        lines.seek(0)
        write_text(file, lines.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--task")
    parser.add_argument("--family")
    parser.add_argument("--n", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each proof")
    parser.add_argument("--workers", type=int, default=2, help="single-threaded processes")
    parser.add_argument("--again", action="store_true", help="include runs that have a row")
    parser.add_argument(
        "--confirm", action="store_true", help="check certificates of the stores, folders"
    )
    parser.add_argument("--certificates", type=Path, help="folder to keep the certificates in")
    parser.add_argument("-o", "--out", type=Path, help="folder for runs.csv")
    given = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the processes, which are spawned
    file = given.out / "runs.csv" if given.out else None
    rows = read_rows(file) if file else []
    if given.confirm:
        for line in confirm(given.stores, rows):
            print(line, flush=True)
        if file:
            write_rows(file, rows)
        return
    known = set() if given.again else {row["run_id"] for row in rows}
    with tempfile.TemporaryDirectory() as scratch:
        kept = given.certificates or Path(scratch)
        kept.mkdir(parents=True, exist_ok=True)
        folders = [folder for store in given.stores for folder in finished_folders(opened(store))]
        runs = [(folder, read_stored_run(folder).spec) for folder in folders]
        todo = [f for f, run in runs if wanted(run, given) and run.run_id not in known]
        for row in results([(folder, given.seconds, kept) for folder in todo], given.workers):
            rows = [each for each in rows if each["run_id"] != row["run_id"]] + [row]
            print(*row.values(), flush=True)
            if file:
                write_rows(file, rows)
    if not rows:
        raise StoreError("no run of these stores is solved and has bounds")
    for line in table(rows):
        print(line)
    if file:
        print(file, file=sys.stderr)


def table(rows: list[Row]) -> Iterator[str]:
    """By task, family, n and kind of examples, as in docs/proofs.md."""
    heads = ["model", "n", "examples", "bounded", "least margin", "closed of the rest"]
    heads += ["nodes, median", "CPU seconds, median (most)"]
    yield f"| {' | '.join(heads)} |"
    yield "| --- " * len(heads) + "|"
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["task"], row["family"], int(row["n"]), row["examples"]), []).append(
            row
        )
    for (task, family, n, examples), own in sorted(cells.items()):
        bounded = ("proved", "bounded")
        proved = sorted(float(row["least_proved"]) for row in own if row["proof"] in bounded)
        closed = sorted(float(row["share_closed"]) for row in own if row["proof"] == "open")
        cpu = [float(row["cpu_seconds"]) for row in own]
        margins = " to ".join(lower_text(proved[k], places=2) for k in (0, -1)) if proved else ""
        yield (
            f"| {task.upper()} {family} | {n} | {examples} | {len(proved)} of {len(own)} "
            f"| {margins} | {', '.join(lower_percent(share, 1) for share in closed)} "
            f"| {statistics.median(int(row['nodes']) for row in own):,.0f} "
            f"| {statistics.median(cpu):.1f} ({max(cpu):.1f}) |"
        )


if __name__ == "__main__":
    main()
