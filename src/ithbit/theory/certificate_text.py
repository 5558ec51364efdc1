"""A certificate as text for people.

Words: *certified* is proved for every input in real arithmetic; *observed* is what float runs did.
"""

from collections.abc import Iterator
from decimal import ROUND_FLOOR, Context
from typing import Any

from rich.table import Table

from ithbit.shown import counted
from ithbit.theory.certificate import Certificate
from ithbit.theory.certifiers.every_n import every_n, trained_every_n
from ithbit.theory.precision import every_input, float_runs, safe_n
from ithbit.theory.trained_solution import TrainedSolution


def certificate_parts(certificate: Certificate) -> Iterator[Any]:
    """The claim, what it rests on, and what was observed in float runs."""
    solution, worst = certificate.solution, certificate.worst
    layers = counted(solution.depth, "layer")
    sizes = " + ".join(map(str, solution.sizes))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("certified" if certificate.certified else "not certified", claim(certificate))
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
        reach = "" if safe is None else f"; in separate runs {safe.sentence()}"
        table.add_row(run.dtype, f"{run.sentence()}{reach} (observed)")
    if isinstance(solution, TrainedSolution):
        spec = solution.spec
        found = trained_every_n(spec.task, spec.family, spec.d_model, spec.n_heads)
        table.add_row("for every n", f"margin >= {floor(float(found.margin))}: {found.because}")
    elif always := every_n(solution.variant, solution.family):
        table.add_row("for every n", f"margin >= {always.margin} by closed form: {always.because}")
    table.add_row("applies to", "real arithmetic on the stored weights, not float runs")
    yield (
        f"{solution.task.upper()} by {solution.family}, n = {solution.n_bits} "
        f"({solution.theorem})\n"
    )
    yield table


def claim(certificate: Certificate) -> str:
    """The margin and the inputs it covers; n · 2^n stays a formula, whatever its size."""
    n = certificate.solution.n_bits
    return f"margin >= {floor(certificate.margin)} on all {n}·2^{n} inputs"


def floor(bound: float) -> str:
    """A lower bound in nine digits, rounded down: what is printed is certified too.

    >>> floor(0.9999999979), floor(4100.0), floor(-2.00000000009)
    ('0.999999997', '4100', '-2.00000001')
    """
    rounded = Context(prec=9, rounding=ROUND_FLOOR).create_decimal_from_float(bound)
    return f"{rounded.normalize():f}"


def shortened(bits: tuple[int, ...]) -> str:
    """A bit string; of a long one, only both ends.

    >>> shortened((1, 0, 1)), shortened((0,) * 99)
    ('101', '000000000000…000000000000')
    """
    text = "".join(map(str, bits))
    return text if len(text) <= 32 else f"{text[:12]}…{text[-12:]}"
