"""What is proved of explicit weights: constructions and their certificates. Nothing here imports
torch."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ithbit.api.arguments import bits_of, checked
from ithbit.errors import SpecError, as_int
from ithbit.families import task_named
from ithbit.theory.architecture import Model, architecture

if TYPE_CHECKING:
    from ithbit.theory.certificate import Certificate
    from ithbit.theory.explain import Explanation
    from ithbit.theory.recall.certificate import RecallCertificate
    from ithbit.theory.recall.tasks import Recall
    from ithbit.theory.solution import Solution, TrainedSolution
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
    values: int | None = None,
    method: str | None = None,
    out: str | Path | None = None,
) -> "Certificate | RecallCertificate":
    """Build weights that solve the task and prove it for all n·2^n inputs.

    The proof is in real arithmetic on the stored weights. The certificate can be written to a file
    and checked again on its own. Sizes apply with `model` trained; formal weights fix their own.

    For mqar, induction, induction-growing and copy: weights of formal layers for so many `values`;
    such a certificate is not written to a file.

    In Python, give a task, a family and n, or weights from `construct`.

    >>> certify("lhi", "softmax-causal", n=64).margin
    1.0
    >>> certify(construct("rhi", "softmax-full", n=64)).certified
    True
    """
    from ithbit.theory.certificate import certify as derive
    from ithbit.theory.certificate import require_writable
    from ithbit.theory.certificate_file import write_certificate
    from ithbit.theory.recall.tasks import RECALL_ONLY, recall

    if isinstance(task, str) and task in RECALL_ONLY:
        options = {"variant": variant, "layers": layers, "method": method, "out": out}
        return _certify_recall(recall(task, values), family, n, model, options)
    if values is not None:
        raise SpecError(f"values are for {', '.join(RECALL_ONLY)}")
    length = n if isinstance(task, str) else _solution(task, family, n, variant, model, {}).n_bits
    if length is not None:
        require_writable(as_int("n", length))
    sizes = {"layers": layers, "width": width, "heads": heads, "ff": ff, "state": state}
    certificate = derive(_solution(task, family, n, variant, model, sizes), method)
    if out is not None:
        write_certificate(certificate, Path(out))
    return certificate


def _certify_recall(
    recall_task: "Recall",
    family: str | None,
    n: int | None,
    model: Model,
    options: dict[str, Any],
) -> "RecallCertificate":
    from ithbit.theory.recall.certificate import build_recall, certify_recall

    if family is None or n is None:
        raise SpecError("give a task, a family and n")
    unused = [name for name, value in options.items() if value is not None]
    if model != "formal" or unused:
        what = f"{', '.join(unused)} cannot be given" if unused else "only formal layers have them"
        raise SpecError(f"weights for {recall_task.name} have sizes of their own: {what}")
    architecture(family, "formal")  # raises for a name that is no formal family
    return certify_recall(build_recall(recall_task, family, n))


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
    proof of a trained run, proof.json, needs the run's weights.safetensors in its folder: a second
    implementation checks every leaf, which may take minutes. Where it does not confirm those of two
    layers of attention, the bounds of the search are computed again, and the run is *bounded
    (unchecked)*.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "certificate.json")
    ...     _ = certify("lhi", "rnn", n=6, out=file)
    ...     check_certificate(file).certified
    True
    """
    from ithbit.store.packed import opened
    from ithbit.theory.certificate_file import check_certificate as check
    from ithbit.theory.certificate_file import read_certificate
    from ithbit.verification.proofs.certificate import FORMATS, check_proof

    path = opened(file)
    content = read_certificate(path)
    if content.get("format") in FORMATS:
        from ithbit.api.progress import bars

        with bars(progress) as progress_bars:  # ends before a refusal is printed
            return check_proof(
                path, content, partial(progress_bars.track, description="checking leaves")
            )
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
