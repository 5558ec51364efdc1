"""The commands: each is an API function plus the way to print its result; `demo` and `bench` are
for the command line only."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from ithbit.api import bounds, checking, probing, records, sweeps, theory, trained, training
from ithbit.api.training import Results
from ithbit.api.verifications import Verifications
from ithbit.cli import demo, options
from ithbit.cli.application import AsJson, command, print_or_json, print_result
from ithbit.contract.findings import ContractReport
from ithbit.display import in_one_line, pluralize, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ithbit.bench.result import BenchResult
    from ithbit.capacity_search.result import Capacities
    from ithbit.contract.report import ProbeReport
    from ithbit.reporting.comparison.agreement import Agreement
    from ithbit.theory.certificate import Certificate
    from ithbit.theory.recall.certificate import RecallCertificate
    from ithbit.theory.solution import Solution, TrainedSolution
    from ithbit.verification.proofs.certificate import Confirmed


@command(demo.demo, options.DEMO)
def print_demo(claims: demo.Demo) -> None:
    """Exit status 0 only if every claim that is printed was seen in this run."""
    print_result(claims)
    _exit_1_if(not claims.all_seen)


@command(training.train, progress=True)
def train(results: Results, as_json: AsJson = False) -> None:
    """Exit status 1 if a run failed."""
    print_or_json(results, as_json)
    _exit_1_if(results.failures)


command(training.params)(print_result)
command(training.sample)(print_result)


@command(sweeps.sweep, options.SWEEP, progress=True)
def sweep(outcome: Results | sweeps.Planned | sweeps.Submitted | sweeps.Cancelled) -> None:
    """Exit status 1 if a run failed."""
    print_result(outcome)
    _exit_1_if(isinstance(outcome, Results) and outcome.failures)


command(sweeps.status, options.STATUS)(print_or_json)
command(sweeps.merge)(print_result)
command(records.table, options.TABLE)(print_result)


@command(records.compare)
def compare(
    agreement: "Agreement",
    complete: Annotated[
        bool, Option("--require-complete", help="Also exit with 1 if a cell is missing runs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Exit status: 0 if nothing that could be compared differs, 1 if a cell or a test of all
    cells at once differs (or, with --require-complete, a cell is missing or incomplete), 2 if
    there is nothing to compare."""
    print_or_json(agreement, as_json)
    _exit_1_if(not agreement.agrees or (complete and not agreement.complete))


@command(records.plot, options.PLOT)
def plot(figure: "Figure", name: str, out: Path | None) -> None:
    from ithbit.reporting.figures import save

    say(out or save(figure, Path(f"{name}.png")))


command(records.report)(print_result)
command(records.export)(print_result)


@command(checking.check, options.CHECK)
def check_layer(report: ContractReport, as_json: AsJson = False) -> None:
    """Exit status: 0 if nothing broken was found, 1 if a clause is broken, 2 if the layer cannot be
    checked."""
    print_or_json(report, as_json)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


@command(probing.probe, options.PROBE, progress=True)
def probe(
    report: "ProbeReport",
    out: Path | None,
    trace: Annotated[
        bool, Option("--traceback", help="Show the traceback of a layer that fails.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    print_or_json(report, as_json)
    if out is not None:
        say(out, file=sys.stderr)


@command(probing.capacity, options.CAPACITY, progress=True)
def capacity(
    capacities: "Capacities", out: Path | None, dry_run: bool, as_json: AsJson = False
) -> None:
    """Exit status 1 if time ran out before the search was done."""
    print_or_json(capacities, as_json)
    if out is not None:
        say(out, file=sys.stderr)
    _exit_1_if(not (capacities.final or dry_run))


@command(trained.verify, options.VERIFY, progress=True)
def verify(verified: Verifications, as_json: AsJson = False) -> None:
    """Exit status: 1 if a run that counts as solved is refuted, or if runs were set aside
    because they cannot be read or tried, else 0."""
    for reason in verified.set_aside:
        say(f"ithbit: set aside: {in_one_line(reason)}", file=sys.stderr)
    if verified.not_kept:
        n_lost = f"verdicts shown but not saved: {len(verified.not_kept)}"
        say(f"ithbit: {n_lost}: {in_one_line(verified.not_kept[0])}", file=sys.stderr)
    for note in verified.notes:
        say(f"ithbit: {in_one_line(note)}", file=sys.stderr)
    print_or_json(verified, as_json)
    _exit_1_if(verified.set_aside or any(each.refuted for each in verified))


command(trained.explore, options.EXPLORE)(print_result)
command(trained.data)(print_result)
command(trained.score, options.SCORE)(print_or_json)
command(bounds.verdict, options.VERDICT)(print_or_json)


@command(theory.construct, options.CONSTRUCT)
def construct(
    solution: "Solution | TrainedSolution", out: Path | None, as_json: AsJson = False
) -> None:
    if as_json:
        from ithbit.theory.certificate_file import weights_to_json

        say(json.dumps(weights_to_json(solution)))
        return
    layers = pluralize(solution.depth, "layer")
    say(
        f"{solution.task} by {solution.family}, n = {solution.n_bits}: {layers} of width "
        f"{solution.width}, {solution.variant} ({solution.theorem})"
    )
    if out is not None:
        say(f"written to the store {out}; `ithbit verify --all --store {out}` tries them")


@command(theory.certify, options.CONSTRUCTION)
def certify(
    certificate: "Certificate | RecallCertificate", out: Path | None, as_json: AsJson = False
) -> None:
    print_or_json(certificate, as_json)
    if out is not None and not as_json:
        say(f"\nwritten to {out}; `ithbit check-certificate {out}` verifies it again")


@command(theory.check_certificate, progress=True)
def check(certificate: "Certificate | Confirmed", file: Path, as_json: AsJson = False) -> None:
    """Exit status: 0 if everything that the file claims was confirmed, 1 if not, or if it is no
    certificate, 2 if the file or the weights cannot be read. What it has observed of float runs is
    not run again. Where only the bounds of the search, computed again, confirm a certificate of two
    layers of attention, the status is 0 and the sentence says so: bounded, not proved."""
    if as_json:
        print_or_json(certificate, as_json)
        return
    from ithbit.verification.proofs.certificate import Confirmed

    if isinstance(certificate, Confirmed):
        word = "holds" if certificate.checked else "confirmed by the same bounds"
        say(f"{word}: {certificate.sentence()}")
        return
    who = f"{certificate.solution.task} by {certificate.solution.family}"
    say(f"holds: {who}, {certificate.claim}, derived again from the weights in {file}")


command(theory.explain, options.CONSTRUCTION)(print_result)
command(bounds.bound, options.THEORY)(print_or_json)
command(bounds.complexity, options.COMPLEXITY)(print_or_json)


def bench(
    *,
    n: list[int] | None = None,
    seeds: list[int] | None = None,
    device: str = "auto",
    steps: int | None = None,
    repeats: int | None = None,
    quick: bool = False,
    read: Path | None = None,
    json: str | None = None,
) -> "BenchResult":
    """Time the reference, the stacked models and compiled code or kernels, side by side.

    For the nine constructive configurations and the deepest of each family: seconds per run and
    epoch, ratios to the reference, and shares of the peak rates measured on the device. A failure
    is reported in its row, and the others continue. Progress goes to standard error; the JSON file
    is rewritten after every configuration.
    """
    from ithbit.bench.result import read_result
    from ithbit.store.writing import check_writable, json_bytes, write_output

    file = None if json in (None, "-") else Path(str(json))
    if file is not None:
        check_writable(file)

    def keep(result: "BenchResult") -> None:
        if file is not None:
            write_output(file, json_bytes(result.to_json()))

    if read is not None:
        result = read_result(read)
    else:
        from ithbit.bench.run import bench as run_bench

        report = partial(say, file=sys.stderr)
        settings = (n or [64], seeds or [5], device, steps, repeats, quick)
        result = run_bench(*settings, report=report, keep=keep)
    keep(result)
    return result


@command(bench, options.BENCH)
def print_bench(result: "BenchResult", json: str | None) -> None:
    from ithbit.bench.result import result_text
    from ithbit.store.writing import json_bytes

    text = json_bytes(result.to_json()).decode() if json == "-" else result_text(result)
    say(text, end="")


def _exit_1_if(condition: object) -> None:
    if condition:
        raise typer.Exit(1)
