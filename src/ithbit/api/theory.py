"""What is proved: constructions and their certificates, bounds, complexity and verdicts.

Nothing here imports torch; bounds and complexities do not need numpy either.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ithbit.api.arguments import at_least_one, bits_of, checked, renamed
from ithbit.errors import SpecError, as_int
from ithbit.families import task_named
from ithbit.theory.architecture import (
    FORMAL_FAMILIES,
    TRAINED_FAMILIES,
    Activation,
    Feature,
    Model,
    Transition,
    architecture,
    need_theory,
)
from ithbit.theory.bounds import LengthBounds, NoBoundError
from ithbit.theory.bounds import all_routes as list_routes
from ithbit.theory.bounds import bound as tightest
from ithbit.theory.complexity import Complexity, causal_complexity

if TYPE_CHECKING:
    from ithbit.theory.certificate import Certificate
    from ithbit.theory.explain import Explanation
    from ithbit.theory.solution import Solution, TrainedSolution
    from ithbit.theory.summary_table import VerdictTable
    from ithbit.theory.verdicts import Verdict
    from ithbit.verification.proofs.certificate import Confirmed


@checked
def construct(
    task: str,
    family: str,
    n: int,
    variant: str | None = None,
    *,
    model: Model = "formal",
    layers: int | None = None,
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
    state: int = 16,
    out: str | Path | None = None,
) -> "Solution | TrainedSolution":
    """Build explicit weights that solve the task for strings of n bits.

    Use `certify` to prove that they do. With `model` trained, they are weights of the blocks that
    are trained, under the names of their parameters, at any width from the least possible one up;
    `out` is then a store, to which they are written as a run for `verify` and `load`.

    >>> construct("lhi", "softmax-causal", n=8).sizes
    (13, 7)
    >>> construct("lhi", "mamba2", n=8, model="trained").width
    16
    """
    if model == "formal":
        from ithbit.theory.constructions import construct as build

        if out is not None:
            raise SpecError("only weights of trained blocks are written as a run; use certify -o")
        return build(task, family, n, variant)
    from ithbit.theory.constructions import construct_trained

    if variant is not None:
        raise SpecError("trained blocks have one construction each; leave the variant out")
    solution = construct_trained(
        task, family, n, layers, d_model=width, n_heads=heads, d_ff=ff, d_state=state
    )
    if out is not None:
        from ithbit.loading.constructed import write_run

        write_run(solution, Path(out))
    return solution


@checked
def certify(
    task: "str | Solution | TrainedSolution",
    family: str | None = None,
    *,
    n: int | None = None,
    variant: str | None = None,
    model: Model = "formal",
    layers: int | None = None,
    width: int = 16,
    heads: int = 2,
    ff: int = 64,
    state: int = 16,
    method: str | None = None,
    out: str | Path | None = None,
) -> "Certificate":
    """Build weights that solve the task and prove it for all n·2^n inputs.

    The proof is in real arithmetic on the stored weights. The certificate can be written to a file
    and checked again on its own. Sizes apply with `model` trained; formal weights fix their own.

    In Python, give a task, a family and n, or weights from `construct`.

    >>> certify("lhi", "softmax-causal", n=64).margin
    1.0
    >>> certify(construct("rhi", "softmax-full", n=64)).certified
    True
    """
    from ithbit.theory.certificate import certify as derive
    from ithbit.theory.certificate import require_writable
    from ithbit.theory.certificate_file import write_certificate

    length = n if isinstance(task, str) else _solution(task, family, n, variant, model, {}).n_bits
    if length is not None:
        require_writable(as_int("n", length))
    sizes = {"layers": layers, "width": width, "heads": heads, "ff": ff, "state": state}
    certificate = derive(_solution(task, family, n, variant, model, sizes), method)
    if out is not None:
        write_certificate(certificate, Path(out))
    return certificate


def _solution(
    task: "str | Solution | TrainedSolution",
    family: str | None,
    n: int | None,
    variant: str | None,
    model: Model,
    sizes: dict[str, Any],
) -> "Solution | TrainedSolution":
    needed = "give a task, a family and n, or the weights of a construction"
    if not isinstance(task, str):
        from ithbit.theory.solution import Solution, TrainedSolution

        if not isinstance(task, Solution | TrainedSolution):
            raise SpecError(f"{needed}, got {type(task).__name__}")
        return task
    if family is None or n is None:
        raise SpecError(needed)
    return construct(task, family, n, variant, model=model, **sizes)


@checked
def check_certificate(file: str | Path, *, progress: bool = False) -> "Certificate | Confirmed":
    """Verify a certificate again; raise an error if it does not hold.

    The certificate of a construction holds its weights, and is verified from its file alone. The
    proof of a trained run, proof.json, needs the run's weights.safetensors beside it: for one layer
    a second implementation checks every leaf, which may take minutes. For two layers there is none,
    so the bounds of the search are computed again: such a run is *bounded (unchecked)*.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "certificate.json")
    ...     _ = certify("lhi", "rnn", n=6, out=file)
    ...     check_certificate(file).certified
    True
    """
    from ithbit.theory.certificate_file import check_certificate as check
    from ithbit.theory.certificate_file import read_certificate
    from ithbit.verification.proofs.certificate import FORMAT, check_proof

    path = Path(file)
    content = read_certificate(path)
    if content.get("format") == FORMAT:
        from ithbit.api.progress import bars

        with bars(progress) as shown:  # ends before a refusal is printed
            return check_proof(path, content, partial(shown.track, description="checking leaves"))
    return check(path)


@checked
def explain(
    task: "str | Solution | TrainedSolution",
    family: str | None = None,
    *,
    bits: str | Iterable[int],
    index: int,
    variant: str | None = None,
    model: Model = "formal",
    width: int = 16,
) -> "Explanation":
    """Show how a construction works on one input, token by token, until the bit is found.

    >>> explain("lhi", "rnn", bits="1011", index=3).answer
    1
    """
    from ithbit.tasks.indexing import Instance
    from ithbit.theory.explain import explain as run

    read, index = bits_of(bits), as_int("index", index)
    if isinstance(task, str):  # report a wrong input before building weights
        Instance(task_named(task), read, index)
    return run(_solution(task, family, len(read), variant, model, {"width": width}), read, index)


@renamed(all="all_routes")
@checked
def bound(
    task: str,
    family: str,
    *,
    layers: int = 1,
    width: int = 16,
    heads: int | None = None,
    ff: int = 64,
    model: Model = "formal",
    n: int | None = None,
    all_routes: bool = False,
    feature: Feature = "elu",
    transition: Transition = "affine",
    activation: Activation = "gelu",
    state: int = 16,
    conv: int = 3,
    bits: int = 32,
) -> LengthBounds:
    """The length n* past which a family provably cannot solve the task, whatever its weights.

    Impossible for every n > n*, in real arithmetic; at n <= n* the bound is vacuous. Each bound
    states its basis: proved here, cited from a book, or conditional, and on what. With
    `all_routes`, the bound by the size of the state is shown too, which holds only for recurrent
    evaluation in finite precision. Where no bound exists or none is known, an error gives the
    reason.

    >>> bound("rhi", "rnn").n_star
    487
    """
    at_least_one(n=n)
    bits = as_int("bits", bits)
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
    try:
        best = tightest(task, arch)
    except NoBoundError:
        from ithbit.theory.verdicts import why_no_bound

        raise NoBoundError(why_no_bound(task_named(task), arch)) from None
    return LengthBounds(task, arch, n, best, list_routes(task, arch, bits), all_routes)


@checked
def complexity(
    family: str,
    *,
    width: int = 16,
    heads: int | None = None,
    ff: int = 64,
    model: Model = "formal",
    position: int = 65,
    feature: Feature = "elu",
    transition: Transition = "affine",
    activation: Activation = "gelu",
    state: int = 16,
    conv: int = 3,
) -> Complexity:
    """Causal complexity of one layer: what it keeps of the past, and what finishing costs.

    The fingerprint is what the k-th output needs from the first k - 1 inputs (p numbers); the
    completion computes the output from it and the k-th input (t operations, the outputs included).
    Both are upper bounds on the minimum, and exact for the plain program of the layer.

    >>> complexity("rnn").operations
    12432
    """
    need_theory(family)
    if family not in (*FORMAL_FAMILIES, *TRAINED_FAMILIES):
        names = FORMAL_FAMILIES if model == "formal" else TRAINED_FAMILIES
        choices = ", ".join(name for name in names if not name.endswith("-full"))
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
    return causal_complexity(arch, as_int("position", position))


@overload
def verdict(
    task: str,
    family: str,
    layers: int | None = None,
    n: int = 64,
    *,
    width: int = 16,
    ff: int = 64,
    model: Model = "formal",
    heads: int | None = None,
    state: int | None = None,
) -> "Verdict": ...


@overload
def verdict(
    task: None = None,
    family: None = None,
    layers: None = None,
    n: int = 64,
    *,
    width: int = 16,
    ff: int = 64,
    model: Model = "formal",
    heads: int | None = None,
    state: int | None = None,
) -> "VerdictTable": ...


@checked
def verdict(
    task: str | None = None,
    family: str | None = None,
    layers: int | None = None,
    n: int = 64,
    *,
    width: int = 16,
    ff: int = 64,
    model: Model = "formal",
    heads: int | None = None,
    state: int | None = None,
) -> "Verdict | VerdictTable":
    """Is the task possible, impossible or open, and why? Without arguments, the summary table.

    Possible: there are explicit weights with a certificate for all n·2^n inputs; past n = 1024,
    where a certificate takes longer, with a margin proved for every n. Impossible: n is past the n*
    of a bound, so no weights do it, in real arithmetic. Open: neither a construction nor a bound
    here covers this n. The table lists a number of layers that suffices at every n, by these
    constructions, and the n* past which one fewer fails, by bounds at these sizes. With `model`
    trained, both are about exactly the blocks that are trained, at their own sizes.

    >>> verdict("lhi", "rnn", layers=1, n=8).answer, verdict("rhi", "rnn", n=1000).answer
    ('possible', 'impossible')
    >>> len(verdict(n=4))
    12
    """
    if (task is None) != (family is None):
        raise SpecError("give a task and a family, or neither for the whole table")
    if task is None and layers is not None:
        raise SpecError(
            "--layers needs a task and a family: the whole table has a number of layers per entry"
        )
    from ithbit.theory.summary_table import table
    from ithbit.theory.verdicts import verdict as decide

    n = as_int("n", n)
    at_least_one(n=n)
    if model == "formal" and state is not None:
        raise SpecError("only Mamba2, which is trained, has a state; take model 'trained'")
    sizes: dict[str, Any] = {
        "width": width,
        "heads": heads,
        "hidden": ff,
        "state": 16 if state is None else state,
    }
    if task is None or family is None:
        return table(n, model=model, **sizes)
    depth = 1 if layers is None else layers
    return decide(task_named(task), architecture(family, model, n_layers=depth, **sizes), n)
