"""`ithbit verdict`: possible, impossible or open, and why; or the paper's summary table, derived.

Imports numpy and python-flint for the certificates, never torch.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ithbit.cli.bounds import Json, Width, described, layers_text
from ithbit.errors import SpecError
from ithbit.theory.architecture import FORMAL_FAMILIES

if TYPE_CHECKING:
    from ithbit.theory.certificate import Certificate
    from ithbit.theory.verdicts import Entry, Verdict


def verdict_command(
    task: Annotated[
        str | None, typer.Argument(help="rhi (index last) or lhi (index first).")
    ] = None,
    family: Annotated[
        str | None, typer.Argument(help=f"A formal family: {', '.join(FORMAL_FAMILIES)}.")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            "--layers", "-L", help="Number of layers; the table needs none.", show_default="1"
        ),
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Number of bits.")] = 64,
    width: Width = 16,
    ff: Annotated[int, typer.Option(help="Hidden units of the MLPs; 0 makes them affine.")] = 64,
    as_json: Json = False,
) -> None:
    """Is it possible, impossible or open, and why; without arguments the whole summary table.

    Possible: explicit weights with a certificate for every one of the n * 2^n inputs. Impossible:
    n is past the n* of a bound, so no weights do it, in real arithmetic. Open: neither a
    construction nor a bound here speaks of this n. The table is derived from constructions that
    certify at n and bounds that hold at this width, and lists the least number of layers.
    """
    if (task is None) != (family is None):
        raise SpecError("give a task and a family, or neither for the whole table")
    if task is None and layers is not None:
        raise SpecError(
            "--layers needs a task and a family: the whole table lists the least number of layers"
        )
    if n < 1:
        raise SpecError(f"n must be at least 1, got {n}")
    if task is None or family is None:
        from ithbit.theory.verdicts import table

        entries = table(n, width=width, hidden=ff)
        if as_json:
            print(json.dumps([_entry_record(entry) for entry in entries], indent=2))
        else:
            _print_table(entries, n, width, ff)
        return
    from ithbit.theory.verdicts import verdict

    found = verdict(task, family, 1 if layers is None else layers, n, width=width, hidden=ff)
    if as_json:
        print(json.dumps(_verdict_record(found), indent=2, ensure_ascii=False))
        return
    print(f"{task} · {family} · {layers_text(found.arch)} · {found.arch.sizes} · n = {n:,}")
    theorem = f" ({found.theorem})" if found.theorem else ""
    print(f"{found.answer}{theorem}")
    print(f"  {found.because}")
    if found.certificate:
        print(
            f"  margin at least {found.certificate.margin:.6g} on all {n} · 2^{n} inputs, in real "
            f"arithmetic; by `ithbit certify {task} {family} --n {n} "
            f"--variant {found.certificate.solution.variant}`"
        )


def _verdict_record(found: "Verdict") -> dict[str, Any]:
    return {
        "task": found.task,
        **described(found.arch),
        "n": found.n_bits,
        "answer": found.answer,
        "because": found.because,
        "theorem": found.theorem,
        "n_star": found.n_star,
        "rests_on": found.route.rests_on if found.route else None,
        "certificate": _certificate_record(found.certificate),
    }


def _entry_record(entry: "Entry") -> dict[str, Any]:
    return {
        "task": entry.task,
        "family": entry.family,
        "min_layers": entry.min_layers,
        "theorem": entry.theorem,
        "certificate": _certificate_record(entry.certificate),
        "n_star_with_fewer": entry.fewer.n_star if entry.fewer else None,
        "n_star_by_depth": [route.n_star for route in entry.by_depth] or None,
        "growth": entry.growth,
        "rests_on": sorted(
            {route.rests_on for route in (*entry.by_depth, *([entry.fewer] if entry.fewer else []))}
        ),
    }


def _certificate_record(certificate: "Certificate | None") -> dict[str, Any] | None:
    if certificate is None:
        return None
    return {
        "certified": certificate.certified,
        "margin": certificate.margin,
        "inputs": certificate.inputs,
        "arithmetic": certificate.arithmetic,
        "depth": certificate.solution.depth,
        "width": certificate.solution.width,
        "variant": certificate.solution.variant,
    }


def _print_table(entries: "tuple[Entry, ...]", n: int, width: int, ff: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    shown = Table("family", "task", "layers", "why", box=SIMPLE_HEAD, pad_edge=False)
    previous = ""
    for entry in entries:
        if entry.certificate:
            layers = str(entry.min_layers)
            d = entry.certificate.solution.width
            margin = f"{entry.certificate.margin:.5g}"
            why = f"certified at width {d}, margin ≥ {margin} ({entry.theorem})"
            if entry.fewer and entry.min_layers:
                depth = entry.min_layers - 1
                why += f"; {depth} layer: impossible past n* = {entry.fewer.n_star:,}"
        else:
            layers = "ω(1)"
            stars = ", ".join(
                f"{route.n_star:,}{'*' if route.cited else ''}" for route in entry.by_depth
            )
            why = f"n* = {stars} for L = 1, 2, 3, 4; {entry.growth} ({entry.theorem})"
        shown.add_row(entry.family if entry.family != previous else "", entry.task, layers, why)
        previous = entry.family
    console = Console()
    console.print(
        f"Least number of formal layers, derived. Certificates cover all {n} · 2^{n} inputs at "
        f"n = {n}; n* is for width {width}, hidden {ff}.",
        highlight=False,
    )
    console.print(shown)
    if any(route.cited for entry in entries for route in entry.by_depth):
        console.print("* with a cited constant; `ithbit bound … --all` has the proved number too.")


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("verdict")(verdict_command)
