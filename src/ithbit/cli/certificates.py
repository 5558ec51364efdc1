"""`ithbit certify`, `check-certificate` and `explain`: the positive side of the theory.

Words: *certified* is proved for every input in real arithmetic; *observed* is what float runs did.
"""

import json
from decimal import ROUND_FLOOR, Context
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ithbit.errors import SpecError

if TYPE_CHECKING:
    from ithbit.theory.certificate import Certificate

TASK = typer.Argument(help="rhi (the index comes last) or lhi (the index comes first).")
FAMILY = typer.Argument(
    help="softmax-full, softmax-causal, linear-full, linear-causal, ssm or rnn; gru, for lhi."
)
VARIANT = typer.Option(
    None,
    "--variant",
    help="Another construction: cosine (rhi softmax), heavy (rhi linear-full), time-invariant "
    "(lhi ssm), pair (lhi rnn).",
)


def register(app: typer.Typer) -> None:
    """Add the three commands."""
    app.command("certify")(certify_command)
    app.command("check-certificate")(check_command)
    app.command("explain")(explain_command)


def certify_command(
    task: str = TASK,
    family: str = FAMILY,
    n_bits: int = typer.Option(..., "--n", help="Length of the bit string, at least 1."),
    variant: str | None = VARIANT,
    as_json: bool = typer.Option(False, "--json", help="Print plain JSON, without the weights."),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="Also write the certificate file, weights included."
    ),
) -> None:
    """Build weights that solve the task and prove it for all n·2^n inputs."""
    from ithbit.theory.certificate import certify
    from ithbit.theory.certificate_file import require_writable, summary, write_certificate
    from ithbit.theory.constructions import construct
    from ithbit.theory.precision import float_runs, observed

    require_writable(n_bits)
    certificate = certify(construct(task, family, n_bits, variant))
    claim = summary(certificate)
    if output is not None:
        write_certificate(certificate, output)
    if as_json:
        seen = observed(certificate.solution, float_runs(certificate.solution))
        print(json.dumps(claim | {"float_execution": seen}))
        return
    _show(certificate)
    if output is not None:
        print(f"\nwritten to {output}; `ithbit check-certificate {output}` verifies it again")


def check_command(
    file: Path = typer.Argument(help="A certificate written by `ithbit certify … -o FILE`."),
    as_json: bool = typer.Option(False, "--json", help="Print plain JSON, without the weights."),
) -> None:
    """Verify a certificate again, from its file alone; a false one is refused, with the reason."""
    from ithbit.theory.certificate_file import check_certificate, summary

    certificate = check_certificate(file)
    if as_json:
        print(json.dumps(summary(certificate)))
        return
    solution, margin = certificate.solution, floor(certificate.margin)
    print(
        f"holds: {solution.task} by {solution.family}, margin >= {margin} on all "
        f"{count(solution.n_bits)} inputs, derived again from the weights in {file}"
    )


def explain_command(
    task: str = TASK,
    family: str = FAMILY,
    bits: str = typer.Option(..., "--bits", help="The bit string, for instance 1011."),
    index: int = typer.Option(..., "--index", help="Which bit is asked for, counted from 1."),
    variant: str | None = VARIANT,
) -> None:
    """Show a construction at work on one input, token by token, until the bit is found."""
    from rich.console import Console

    from ithbit.cli.explain import show
    from ithbit.tasks.indexing import Instance
    from ithbit.theory.constructions import construct, construction_named
    from ithbit.theory.explain import explain

    entry = construction_named(task, family)
    instance = Instance(entry.task, parse_bits(bits), index)
    solution = construct(task, family, len(instance.bits), variant)
    show(explain(solution, instance.bits, index), Console(highlight=False))


def parse_bits(text: str) -> tuple[int, ...]:
    """The bits of a string of 0 and 1.

    >>> parse_bits("101")
    (1, 0, 1)
    """
    if not text or set(text) - {"0", "1"}:
        raise SpecError(f"bits must be a string of 0 and 1 such as 1011, got {text!r}")
    return tuple(int(bit) for bit in text)


def count(n_bits: int) -> str:
    """n · 2^n as a person reads it, whatever its size.

    >>> count(4096), count(8)
    ('4096·2^4096', '8·2^8')
    """
    return f"{n_bits}·2^{n_bits}"


def floor(bound: float) -> str:
    """A lower bound in nine digits, rounded down: what is printed is certified too.

    >>> floor(0.9999999979), floor(4100.0), floor(-2.00000000009)
    ('0.999999997', '4100', '-2.00000001')
    """
    rounded = Context(prec=9, rounding=ROUND_FLOOR).create_decimal_from_float(bound)
    return f"{rounded.normalize():f}"


def _show(certificate: "Certificate") -> None:
    from rich.console import Console
    from rich.table import Table

    from ithbit.theory.certifiers.every_n import every_n
    from ithbit.theory.precision import every_input, float_runs, safe_n

    solution, worst = certificate.solution, certificate.worst
    layers = "1 layer" if solution.depth == 1 else f"{solution.depth} layers"
    sizes = " + ".join(map(str, solution.sizes))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    verdict = "certified" if certificate.certified else "not certified"
    table.add_row(
        verdict,
        f"margin >= {floor(certificate.margin)} on all {count(solution.n_bits)} inputs",
    )
    table.add_row(
        "weights", f"{layers} of width {solution.width}, size {sizes}; {solution.variant}"
    )
    table.add_row("how", certificate.derivation)
    table.add_row("arithmetic", certificate.arithmetic)
    table.add_row(
        "worst found",
        f"index {worst.index}, bits {shortened(worst.bits)}; margin {worst.margin:.9g} (observed)",
    )
    every = every_input(solution)
    if every is not None:
        margin = f"smallest margin {every.margin:.9g}"
        table.add_row(
            "enumerated", f"all {every.inputs} inputs run one by one, {margin} (observed)"
        )
    for run in float_runs(solution):
        safe = safe_n(solution, run.dtype)
        reach = "" if safe is None else f"; in longer runs {safe.sentence()}"
        table.add_row(run.dtype, f"{run.sentence()}{reach} (observed)")
    always = every_n(solution.variant, solution.family)
    if always is not None:
        table.add_row("for every n", f"margin >= {always.margin} by closed form: {always.because}")
    table.add_row("speaks of", "real arithmetic on the stored weights, not of float runs")
    console = Console(highlight=False)
    task, n = solution.task.upper(), solution.n_bits
    console.print(f"{task} by {solution.family}, n = {n} ({solution.theorem})\n")
    console.print(table)


def shortened(bits: tuple[int, ...]) -> str:
    """A long bit string by its ends.

    >>> shortened((1, 0, 1)), shortened((0,) * 99)
    ('101', '000000000000…000000000000')
    """
    text = "".join(map(str, bits))
    return text if len(text) <= 32 else f"{text[:12]}…{text[-12:]}"
