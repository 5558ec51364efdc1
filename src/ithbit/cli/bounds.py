"""`ithbit bound` and `ithbit complexity`: past which n a family fails, and what its layers keep.

Integers and floats only: these commands import neither torch nor numpy.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ithbit.errors import SpecError
from ithbit.theory.architecture import (
    FORMAL_FAMILIES,
    TRAINED_FAMILIES,
    Activation,
    Architecture,
    Feature,
    Model,
    Transition,
    architecture,
)

if TYPE_CHECKING:
    from ithbit.theory.bounds import Route

FAMILIES: dict[Model, tuple[str, ...]] = {"formal": FORMAL_FAMILIES, "trained": TRAINED_FAMILIES}
CAUSAL_FAMILIES: dict[Model, tuple[str, ...]] = {
    model: tuple(name for name in names if not name.endswith("-full"))
    for model, names in FAMILIES.items()
}


def _family_help(families: dict[Model, tuple[str, ...]]) -> str:
    formal, trained = (", ".join(families[model]) for model in ("formal", "trained"))
    return f"Formal: {formal}. With --model trained: {trained}."


Layers = Annotated[int, typer.Option("--layers", "-L", help="Number of layers.")]
Width = Annotated[int, typer.Option("--width", "-d", help="Width d of the layers.")]
Heads = Annotated[
    int | None,
    typer.Option(
        help="Attention heads, or heads of Mamba2; must divide the width. "
        "Default: 1 formal, 2 trained. Ignored by rnn, ssm, gru."
    ),
]
Ff = Annotated[
    int,
    typer.Option(
        help="Hidden units of the MLP or feed-forward part; 0 makes the formal MLPs affine. "
        "Ignored by gru, mamba2."
    ),
]
ModelOption = Annotated[
    Model,
    typer.Option(
        help="formal: the layers the paper defines; trained: the blocks of its experiments."
    ),
]
FeatureOption = Annotated[
    Feature, typer.Option(help="Formal linear attention: the kernel function ELU+1 or ReLU+1.")
]
TransitionOption = Annotated[
    Transition,
    typer.Option(help="Formal SSM: A(x), B(x) affine in x, or A constant and B linear."),
]
ActivationOption = Annotated[
    Activation, typer.Option(help="Trained attention: exact erf GELU or ReLU in its feed-forward.")
]
State = Annotated[int, typer.Option(help="Mamba2: state size per channel.")]
Conv = Annotated[int, typer.Option(help="Mamba2: width of the causal convolution.")]
Json = Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")]


def bound_command(
    task: Annotated[str, typer.Argument(help="rhi (index last) or lhi (index first).")],
    family: Annotated[str, typer.Argument(help=_family_help(FAMILIES))],
    layers: Layers = 1,
    width: Width = 16,
    heads: Heads = None,
    ff: Ff = 64,
    model: ModelOption = "formal",
    n: Annotated[int | None, typer.Option("--n", "-n", help="Say what holds at this n.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every route, tightest first.")] = False,
    feature: FeatureOption = "elu",
    transition: TransitionOption = "affine",
    activation: ActivationOption = "gelu",
    state: State = 16,
    conv: Conv = 3,
    bits: Annotated[int, typer.Option(help="Bits per number of the state, for --all.")] = 32,
    as_json: Json = False,
) -> None:
    """The length n* past which a family provably cannot solve the task, whatever its weights.

    Impossible for every n > n*, in real arithmetic; at n <= n* the bound is vacuous. Each number
    says what it rests on: proved here, cited from a book, or conditional and on what. With --all
    also the bound by the size of the state, which holds for recurrent evaluation in finite
    precision only. JSON lists under vacuous_at where the bound says nothing: of the given n, or of
    the paper's lengths 8, 16, 32, 64. Exit status 2 where no bound exists or none is known, with
    the reason.
    """
    from ithbit.theory.bounds import all_routes, bound

    if n is not None and n < 1:
        raise SpecError(f"n must be at least 1, got {n}")
    arch = architecture(
        family,
        model,
        n_layers=layers,
        width=width,
        heads=heads,
        hidden=ff,
        feature=feature,
        transition=transition,
        activation=activation,
        state=state,
        conv=conv,
    )
    best = bound(task, arch)
    routes = all_routes(task, arch, bits) if every else (best,)
    if as_json:
        record = {"task": task, **described(arch), "n": n, **_route_record(best, n)}
        if every:
            record["routes"] = [_route_record(route, n) for route in routes]
        print(json.dumps(record, indent=2, ensure_ascii=False))
        return
    print(f"{task} · {arch.family} ({arch.model}) · {layers_text(arch)} · {arch.sizes}")
    print(f"impossible for every n > {best.n_star:,}, whatever the weights, in real arithmetic")
    print(f"  {best.rests_on}")
    proved = [route.n_star for route in all_routes(task, arch) if _stands_alone(route)]
    if best.cited and proved:
        print(f"  without the cited constant: impossible for every n > {min(proved):,}")
    if n is not None:
        says = "impossible" if n > best.n_star else "vacuous: the bound says nothing"
        print(f"  at n = {n:,}: {says}")
    elif best.vacuous_at():
        lengths = ", ".join(map(str, best.vacuous_at()))
        print(f"  vacuous at the paper's lengths n = {lengths}")
    if every:
        print("\nevery route, tightest first:")
        for route in routes:
            print(f"  {route.n_star:>22,}  {route.name}")
            print(f"  {'':>22}  {route.rests_on}")


def _stands_alone(route: "Route") -> bool:
    return route.real_arithmetic and not route.cited


def layers_text(arch: Architecture) -> str:
    return f"{arch.n_layers} layer{'s' if arch.n_layers > 1 else ''}"


def described(arch: Architecture) -> dict[str, Any]:
    return {
        "family": arch.family,
        "model": arch.model,
        "layers": arch.n_layers,
        "width": arch.width,
        "sizes": arch.sizes,
    }


def _route_record(route: "Route", n: int | None) -> dict[str, Any]:
    from ithbit.theory.bounds import PAPER_LENGTHS

    lengths = PAPER_LENGTHS if n is None else (n,)
    return {
        "route": route.name,
        "n_star": route.n_star,
        "status": route.status,
        "rests_on": route.rests_on,
        "conditions": list(route.conditions),
        "real_arithmetic": route.real_arithmetic,
        "vacuous_at": list(route.vacuous_at(lengths)),
    }


def complexity_command(
    family: Annotated[str, typer.Argument(help=_family_help(CAUSAL_FAMILIES))],
    width: Width = 16,
    heads: Heads = None,
    ff: Ff = 64,
    model: ModelOption = "formal",
    position: Annotated[
        int, typer.Option("--position", "-k", help="Softmax: the token k that is computed.")
    ] = 65,
    feature: FeatureOption = "elu",
    transition: TransitionOption = "affine",
    activation: ActivationOption = "gelu",
    state: State = 16,
    conv: Conv = 3,
    as_json: Json = False,
) -> None:
    """Causal complexity of one layer: what it keeps of the past, and what finishing costs.

    The fingerprint is what the k-th output needs of the first k - 1 inputs (p numbers), the
    completion computes the output from it and the k-th input (t operations, the outputs among
    them). Upper bounds of the minimum, exact for the plain program of the layer.
    """
    from ithbit.theory.complexity.formulas import causal_complexity

    if not any(family in names for names in FAMILIES.values()):
        choices = ", ".join(CAUSAL_FAMILIES[model])
        raise SpecError(f"unknown family {family!r}, choose one of {choices}")
    arch = architecture(
        family,
        model,
        width=width,
        heads=heads,
        hidden=ff,
        feature=feature,
        transition=transition,
        activation=activation,
        state=state,
        conv=conv,
    )
    found = causal_complexity(arch, position)
    if as_json:
        record = {
            **described(arch),
            "fingerprint": found.fingerprint,
            "dimension": found.dimension,
            "operations": found.operations,
            "exponentials": found.exponentials,
            "square_roots": found.square_roots,
            "logarithms": found.logarithms,
            "error_functions": found.error_functions,
            "total": found.total,
            "dimension_formula": found.dimension_formula,
            "operations_formula": found.operations_formula,
            "position": position if found.grows_with else None,
            "covered": found.covered,
        }
        print(json.dumps(record, indent=2, ensure_ascii=False))
        return
    print(f"{arch.family} ({arch.model}) · one layer · {arch.sizes}")
    if found.grows_with:
        print(f"at token k = {position}")
    print(f"  fingerprint  {found.dimension:>9,} numbers     p = {found.dimension_formula}")
    print(f"               {found.fingerprint}")
    print(f"  completion   {found.operations:>9,} operations  t = {found.operations_formula}")
    special = [
        f"{count:,} {what}"
        for count, what in (
            (found.exponentials, "exp"),
            (found.square_roots, "sqrt"),
            (found.logarithms, "log"),
            (found.error_functions, "erf"),
        )
        if count
    ]
    if special:
        print(f"               at most {', '.join(special)} among them")
    print(f"  p + t        {found.total:>9,}             an upper bound of the causal complexity")
    if found.grows_with:
        print("The fingerprint grows with k: no bound for right-hand indexing follows.")
    if not found.covered:
        print(
            "sqrt, log and erf are not operations of the paper's Definition 1: Theorem 12a does "
            "not apply as stated, the counting theorem of `ithbit bound` does."
        )


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("bound")(bound_command)
    app.command("complexity")(complexity_command)
