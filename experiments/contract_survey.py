"""The contract of every causal language model of the installed transformers that can be built small
from a configuration: one row per model and one per finding, in a CSV file.

    python experiments/contract_survey.py               # goes on where it stopped
    python experiments/contract_survey.py --table       # the tables of docs/survey.md

Each model is checked in a child process with limits on time and memory, as `ithbit check --model
transformers:CLASS` does, for `--seconds` of processor time. The code of every finding is run alone
afterwards; the column `alone` has the number that it prints. Needs transformers and no network.
"""

import argparse
import contextlib
import csv
import io
import math
import multiprocessing
import os
import re
import resource
import time
from multiprocessing.connection import Connection
from pathlib import Path

from ithbit.contract.clauses import CLAUSES
from ithbit.contract.findings import CheckSettings, ContractReport
from ithbit.contract.tiny_models import causal_models
from ithbit.store.writing import write_text

ROOT = Path(__file__).parents[1]
SURVEY = ROOT / "results" / "contract" / "survey.csv"
FIELDS = (
    *("transformers", "torch", "kind", "model", "clause", "outcome", "size", "alone", "length"),
    *("output", "later", "note"),
)
_MEMORY, _CPU_SECONDS, _WALL_SECONDS = 12 << 30, 90, 600
Row = dict[str, str]


def survey(file: Path, seconds: float, only: list[str]) -> None:
    """Check every model that the file has no rows of for these versions."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    rows = read(file)
    done = {row["kind"] for row in rows if row["transformers"] == versions["transformers"]}
    models = causal_models()
    for number, (kind, name) in enumerate(models.items(), 1):
        if kind in done or (only and kind not in only):
            continue
        began = time.monotonic()
        found = [versions | {"kind": kind, "model": name} | row for row in _in_child(name, seconds)]
        rows += found
        write(file, rows)
        what = [row["clause"] or row["outcome"] for row in found]
        spent = time.monotonic() - began
        print(f"{number}/{len(models)} {kind}: {', '.join(what)} ({spent:.0f} s)", flush=True)


def _in_child(name: str, seconds: float) -> list[Row]:
    """The rows of one model, from a process of its own."""
    context = multiprocessing.get_context("fork")  # libraries are imported once
    reading, writing = context.Pipe(duplex=False)
    child = context.Process(target=_check_one, args=(name, seconds, writing))
    child.start()
    writing.close()
    rows, reason = [], f"it takes more than {_WALL_SECONDS} seconds"
    if reading.poll(_WALL_SECONDS):
        try:
            rows = reading.recv()
        except EOFError:
            reason = "its process ended: too much time or memory"
    child.kill()
    child.join()
    return rows or [{"clause": "", "outcome": "cannot be checked", "note": reason}]


def _check_one(name: str, seconds: float, out: Connection) -> None:
    from ithbit.contract.whole_models import check_model

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    with open(os.devnull, "w") as silent, contextlib.redirect_stderr(silent):
        settings = CheckSettings(seconds=seconds)
        report = check_model(f"transformers:{name}", settings)
        out.send(rows_of(report))


def rows_of(report: ContractReport) -> list[Row]:
    """A row for the model and one for every finding."""
    lists = {
        outcome: " ".join(each.clause for each in report.results if each.outcome == outcome)
        for outcome in ("kept", "not checked")
    }
    note = report.cannot or "; ".join(
        [
            f"kept: {lists['kept']}",
            *([f"not checked: {lists['not checked']}"] if lists["not checked"] else []),
            *([] if report.outcome("causal") == "broken" else [report.coverage.sentence()]),
            *report.remarks,
        ]
    )
    rows = [{"clause": "", "outcome": report.verdict, "note": note}]
    for each in report.results:
        finding = each.finding
        if finding is not None:
            numbers = {"length": finding.length, "output": finding.output, "later": finding.later}
            rows.append(
                {key: "" if value is None else str(value) for key, value in numbers.items()}
                | {"clause": each.clause, "outcome": each.outcome, "note": finding.sentence}
                | {"size": _text(finding.size), "alone": shown_alone(finding.code)}
            )
    return rows


def shown_alone(code: str) -> str:
    """What the code of a finding prints."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, {})
    except Exception as error:
        return type(error).__name__
    text = printed.getvalue().strip()
    try:
        return _text(float(text))
    except ValueError:
        return text


def _text(number: float | None) -> str:
    return "" if number is None else f"{number:.2g}" if math.isfinite(number) else str(number)


def read(file: Path) -> list[Row]:
    """The rows so far."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def write(file: Path, rows: list[Row]) -> None:
    """All rows, atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text.getvalue())


def table(rows: list[Row]) -> list[str]:
    """The findings as lines of a Markdown table, by clause and by size."""
    findings = [row for row in rows if row["clause"]]
    order = list(dict.fromkeys(clause.name for clause in CLAUSES))
    findings.sort(key=lambda row: (order.index(row["clause"]), -_number(row["size"]), row["kind"]))
    lines = ["| transformers | model | clause | size | what |", "| --- | --- | --- | --- | --- |"]
    for row in findings:
        cells = (row["transformers"], row["model"], row["clause"], row["size"] or "–", what(row))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def what(row: Row) -> str:
    """A finding's sentence in a few words."""
    note = row["note"]
    drawn = ", drawn again" if "matrices drawn again" in note else ""
    if shape := re.search(r"logits of shape (\(.+?\)), not (\(.+?\))", note):
        return f"logits of shape {shape[1]}, not {shape[2]}"
    if row["clause"] == "padding":
        passed = ", positions passed" if "and position_ids" in note else ""
        if "read with the cache" in note:
            return f"with the cache alone{drawn}"
        is_read = "stands there matters" in note
        return f"masked tokens {'are read' if is_read else 'shift the others'}{passed}{drawn}"
    if row["clause"] in ("cache", "chunks"):
        read = re.search(r"read as (.+?)(?: in chunks)? with its cache( in a batch of \d)?", note)
        makes_up = "; not with positions passed" if "not if position_ids" in note else ""
        words = f"{read[1]}{read[2] or ''}" if read else ""
        return f"{words}, from output {row['output']} on{drawn}{makes_up}"
    if row["clause"] == "causal":
        return (
            f"output {row['output']} of {row['length']} reads tokens from {row['later']} on{drawn}"
        )
    if row["clause"] == "length":
        return f"output {row['output']}: {int(row['later']) - 1} alone, of {row['length']}{drawn}"
    return f"output {row['output']}{drawn}"


def summary(rows: list[Row]) -> tuple[int, int, dict[str, str]]:
    """How many models were checked, how many of them broke nothing, and why others were not."""
    models = [row for row in rows if not row["clause"]]
    cannot = {row["kind"]: row["note"] for row in models if row["outcome"] == "cannot be checked"}
    keeps = sum(row["outcome"] == "keeps" for row in models)
    return len(models) - len(cannot), keeps, cannot


def _number(text: str) -> float:
    return float(text) if text else math.inf


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=SURVEY)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", nargs="*", default=[], help="model types such as llama")
    parser.add_argument("--table", action="store_true", help="print tables instead")
    given = parser.parse_args()
    if given.table:
        print("\n".join(table(read(given.out))))
        n_checked, n_keeps, reasons = summary(read(given.out))
        print(f"\n{n_checked} checked, {n_keeps} broke nothing, {len(reasons)} not checked:")
        print("\n".join(f"| {kind} | {reason} |" for kind, reason in reasons.items()))
        raise SystemExit
    survey(given.out, given.seconds, given.only)
