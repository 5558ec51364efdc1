"""The command `demo`: what the package claims, seen in a minute on two cores.

Each step does what a command does and returns what it saw. The exit status is 0 only if every claim
that is printed was seen in this run.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from ithbit.api.arguments import Observers
from ithbit.api.records import report
from ithbit.api.theory import check_certificate
from ithbit.api.trained import explore, load, verify
from ithbit.api.training import run_here
from ithbit.display import Paragraph, Printable, clock, lower_text, pluralize, say
from ithbit.engine.options import TrainingOptions
from ithbit.errors import StoreError
from ithbit.store.packed import opened
from ithbit.store.reading import check_kind
from ithbit.store.records import Result
from ithbit.sweeps.presets import preset

SHIPPED = Path(__file__).with_name("shipped.zip")  # two of the runs in `results/weights`
REFUTED = "lhi_n64_softmax-causal_L2d16h2_polynomial_s2-c39cdd8cdfa2"
PROVED = "rhi_n64_softmax-full_L1d16h2_polynomial_s0-ed0574675890"
SAMPLES = 2000  # as many as the paper's criterion has


@dataclass(frozen=True)
class Claim:
    """What one step shows, whether that was seen, and the command that does the same."""

    title: str
    lines: tuple[str, ...]
    seen: bool
    command: str


@dataclass(frozen=True, repr=False)
class Demo(Printable):
    """The claims of the demo and the pages it wrote."""

    claims: tuple[Claim, ...]
    pages: tuple[Path, ...]
    seconds: float

    @property
    def all_seen(self) -> bool:
        return all(claim.seen for claim in self.claims)

    def render(self) -> Iterator[Any]:
        for claim in self.claims:
            mark = "✓" if claim.seen else "✗ NOT SEEN:"
            yield Paragraph(f"{mark} {claim.title}", "", "  ", style="bold")
            for line in claim.lines:
                yield Paragraph(line, "  ", "    ")
            yield f"  $ {claim.command}"
            yield ""
        n_seen = sum(claim.seen for claim in self.claims)
        yield f"Seen: {n_seen} of {len(self.claims)} claims, in {clock(self.seconds)}."
        yield f"Pages to open in a browser: {', '.join(map(str, self.pages))}"


def demo(
    *, device: str = "auto", store: Path = Path("runs/demo"), page: Path | None = None
) -> Demo:
    """See what ithbit claims, in a minute: layers checked, models trained, refuted and proved.

    Checks a layer that keeps its contract and one that leaks; trains two kinds of model where
    theory separates them, and tries all inputs; finds an input that a model with 2,000 of 2,000
    right samples gets wrong; checks the proof that another one is right on all inputs. Runs that
    were trained before are not trained again.
    """
    started = time.monotonic()
    options = TrainingOptions(device)
    check_kind(store)
    _ = options.chosen_device  # refused now, not after a step
    refuted = _copy_of(REFUTED)
    steps: tuple[tuple[str, Callable[[], Claim]], ...] = (
        ("checking two layers", _layers),
        ("training two kinds of model at n = 8", lambda: _trained(options, store)),
        ("trying a trained model at n = 64", lambda: _refuted(refuted, device)),
        ("checking a proof at n = 64", _proved),
    )
    claims = []
    for at, (what, step) in enumerate(steps, 1):
        say(f"{at} of {len(steps)}: {what} …", file=sys.stderr)
        claims.append(step())
    page = store / "report.html" if page is None else page
    report(store, out=page, settings="any")
    model = explore(refuted, out=store / "model.html")
    return Demo(tuple(claims), (page, model), time.monotonic() - started)


def _copy_of(run: str) -> Path:
    folder = opened(SHIPPED) / run
    if not folder.is_dir():
        raise StoreError(f"{SHIPPED} lacks the run {run}: install ithbit again")
    return folder


def _layers() -> Claim:
    """One layer keeps its contract, the other one breaks it."""
    from ithbit.cli.demo_layers import BlockMean, RunningMean
    from ithbit.contract.check import check_contract
    from ithbit.contract.findings import CheckSettings

    settings = CheckSettings(seconds=4.0)
    good, leaky = (check_contract(each, settings) for each in (RunningMean, BlockMean))
    lines = [f"RunningMean: {good.coverage.sentence()} (observed, not proved)"]
    lines += [
        f"BlockMean: {finding.clause}: {finding.sentence}" for finding in leaky.findings("broken")
    ]
    seen = good.exit_code == 0 and leaky.outcome("causal") == "broken"
    where = f"{_from_here(Path(__file__).with_name('demo_layers.py'))}:BlockMean"
    return Claim(
        "A layer that sees the future is found", tuple(lines), seen, f"ithbit check {where}"
    )


def _trained(options: TrainingOptions, store: Path) -> Claim:
    """Where theory has a small solution, training finds it, right on all inputs; where it has none,
    every trained model is wrong somewhere."""
    outcomes = run_here(preset("demo"), store, options, Observers(progress=True))
    results = [each for each in outcomes if isinstance(each, Result)]
    verifications = verify(results, store=store, count=True, device=options.device)
    lines, as_predicted = [], len(results) == len(outcomes) == len(verifications)
    groups: set[str] = set()
    for result, one in zip(results, verifications, strict=True):
        model, record = result.spec.model, one.record
        able = result.spec.group == "constructive"
        wrong, total = record["n_wrong"], record["n_evaluated"]
        as_predicted &= record["exhaustive"] and (wrong == 0) == able
        groups.add(result.spec.group)
        promise = "a small solution exists" if able else "no small solution is known"
        lines.append(
            f"{model.task.upper()}, {model.family}, {pluralize(model.n_layers, 'layer')} "
            f"({promise}), seed {result.spec.seed}: {wrong:,} of all {total:,} inputs wrong"
        )
    title = "Training succeeds where theory has a solution, and here fails where it has none"
    command = "ithbit sweep demo && ithbit verify --all --count"
    return Claim(title, tuple(lines), as_predicted and len(groups) == 2, command)


def _refuted(run: Path, device: str) -> Claim:
    """A model that is right on 2,000 random samples and wrong on a plain input."""
    import torch

    model: Any = load(run, library=False)
    n = model.run.model.n_bits
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(2, (SAMPLES, n), generator=generator)
    index = torch.randint(1, n + 1, (SAMPLES,), generator=generator)
    plain = "0" * (n - 1) + "1"
    with torch.no_grad():
        logit = float(model(plain, n))
        answers = (model(bits, index) > 0).long()
    right = int((answers == bits.gather(1, index[:, None] - 1)[:, 0]).sum())
    (verification,) = verify(run, budget=100_000, device=device)
    case = None if verification.found is None else verification.found.counterexample
    lines = [
        f"{verification.name}: {right:,} of {SAMPLES:,} random samples right",
        f"bits {_brief(plain)}, index {n}: answers {int(logit > 0)}, logit {logit:.2f}",
    ]
    if case is not None:
        lines.append(f"verify finds bits {_brief(case.bits)}, index {case.index}, wrong as well")
    seen = right == SAMPLES and logit < 0 and case is not None and verification.verdict == "refuted"
    title = "Passing 2,000 random samples is not solving the task"
    return Claim(
        title,
        tuple(lines),
        seen,
        f"ithbit verify {verification.name} --store {_from_here(SHIPPED)}",
    )


def _proved() -> Claim:
    """A certificate that a trained model is right on all inputs, checked now."""
    file = _copy_of(PROVED) / "proof.json"
    certificate: Any = check_certificate(file, progress=True)
    lines = (
        f"{certificate.name}: right on all {certificate.inputs:,} inputs, margin at least "
        f"{lower_text(certificate.margin)}",
        f"{certificate.leaves:,} sets of inputs cover them all; "
        "a second implementation bounded each now",
    )
    command = f"ithbit check-certificate {_from_here(SHIPPED / PROVED / 'proof.json')}"
    return Claim(
        "Another trained model is proved right on every input",
        lines,
        bool(certificate.checked),
        command,
    )


def _from_here(path: Path) -> str:
    """The path in a command: relative if it is below the current folder, and quoted for a shell."""
    folder = Path.cwd()
    return quote(str(path.relative_to(folder) if path.is_relative_to(folder) else path))


def _brief(bits: str) -> str:
    """A long string with its longest run of one bit shortened.

    >>> _brief("0" * 63 + "1"), _brief("1011")
    ('00…01', '1011')
    """
    for bit in "01":
        head, separator, rest = bits.partition(bit * 16)
        if separator:
            return f"{head}{bit * 2}…{bit}{rest.lstrip(bit)}"
    return bits
