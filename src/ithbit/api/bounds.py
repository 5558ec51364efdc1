"""What is possible and what is not: bounds, complexities and verdicts.

Nothing here imports torch; bounds and complexities do not need numpy either.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from ithbit.api.arguments import at_least_one, checked, renamed
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
from ithbit.theory.complexity import Complexity, causal_complexity

if TYPE_CHECKING:
    from ithbit.theory.recall.verdicts import RecallVerdict
    from ithbit.theory.summary_table import VerdictTable
    from ithbit.theory.verdicts import Verdict


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
    values: int | None = None,
    all_routes: bool = False,
    feature: Feature = "elu",
    transition: Transition = "affine",
    activation: Activation = "gelu",
    state: int = 16,
    conv: int = 3,
    bits: int = 32,
    query_tokens: int = 1,
    query_symbols: int | None = None,
) -> LengthBounds:
    """The length n* past which a family provably cannot solve the task, whatever its weights.

    Tasks are rhi and lhi, with `values` for symbols instead of bits, and other recall tasks: mqar,
    induction, induction-growing, copy (docs/recall.md). The index of rhi and the keys of mqar may
    be words of so many tokens, over so many symbols.

    Impossible for every n > n*, in real arithmetic; at n <= n* the bound is vacuous. Each bound
    states its basis: proved here, cited from a book, or conditional, and on what. With
    `all_routes`, the bound by the size of the state is shown too, which holds only for recurrent
    evaluation in finite precision. Where no bound exists or none is known, an error gives the
    reason.

    >>> bound("rhi", "rnn").n_star, bound("mqar", "rnn", values=4096).n_star
    (487, 42)
    """
    from ithbit.theory.recall.tasks import recall, recall_accuracy, recall_routes

    at_least_one(n=n)
    bits = as_int("bits", bits)
    recall_task = recall(task, values, query_tokens, query_symbols)
    if n is not None and n > (most := recall_task.query.most or n):
        raise SpecError(f"{recall_task.query.text} are at most {most:,} queries, got n = {n:,}")
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
    routes = recall_routes(recall_task, arch, bits)
    best = next((route for route in routes if route.real_arithmetic), None)
    if best is None and recall_task.binary:
        from ithbit.theory.verdicts import why_no_bound

        raise NoBoundError(why_no_bound(task_named(task), arch))
    if best is None:
        from ithbit.theory.recall.verdicts import recall_verdict

        task_verdict = recall_verdict(recall_task, arch, 64 if n is None else n)
        subject = f"no bound for {task} by {arch.depth} of {family} ({model})"
        floats = task_verdict.in_floats
        more = "" if floats is None else f"; in a state of 32-bit numbers at most n = {floats:,}"
        raise NoBoundError(f"{subject}: {task_verdict.answer}; {task_verdict.because}{more}")
    accuracy = recall_accuracy(recall_task, arch, n) if n is not None and n > best.n_star else None
    values, words = recall_task.values or None, recall_task.query
    return LengthBounds(
        task, arch, n, best, routes, all_routes, values, words, recall_task.counts, accuracy
    )


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
    task: str | None = None,
    values: int | None = None,
) -> Complexity:
    """Causal complexity of one layer: what it keeps of the past, and what finishing costs.

    With a `task` or a number of `values` (then rhi), also how many answers such a layer can hold.

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
    result = causal_complexity(arch, as_int("position", position))
    if task is None and values is None:
        return result
    from ithbit.theory.recall.tasks import recall
    from ithbit.theory.recall.verdicts import one_layer_holds

    recall_task = recall("rhi" if task is None else task, values)
    return replace(result, holds=one_layer_holds(recall_task, arch, result.dimension))


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
    values: int | None = None,
) -> "Verdict | RecallVerdict": ...


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
    values: None = None,
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
    values: int | None = None,
) -> "Verdict | RecallVerdict | VerdictTable":
    """Is the task possible, impossible or open, and why? Without arguments, the summary table.

    Tasks are rhi and lhi, with `values` for symbols instead of bits, and other recall tasks: mqar,
    induction, induction-growing, copy (docs/recall.md).

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
        if values is not None:
            raise SpecError("--values needs a task and a family")
        return table(n, model=model, **sizes)
    depth = 1 if layers is None else layers
    from ithbit.theory.recall.tasks import recall

    recall_task = recall(task, values)
    arch = architecture(family, model, n_layers=depth, **sizes)
    if recall_task.binary:
        return decide(task_named(task), arch, n)
    from ithbit.theory.recall.verdicts import recall_verdict

    return recall_verdict(recall_task, arch, n)
