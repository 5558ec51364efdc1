"""Complete records that cannot be true: each function raises `ContradictionError` for one kind.

They take plain data by field name, so that a JSON record and a table row are checked alike.
"""

from collections.abc import Mapping
from typing import Any

from ithbit.errors import SpecError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.records import Case, Verification
from ithbit.store.schema import MAX_INT, ContradictionError, schema

Data = Mapping[str, Any]


def in_spec(model: Data, seed: int, protocol: Data, where: str) -> None:
    """A model or protocol that cannot be built; fields unknown to this version are ignored."""
    known = [
        {name: part[name] for name in schema(kind) if part.get(name) is not None}
        for kind, part in ((ModelSpec, model), (Protocol, protocol))
    ]
    for name, value in (known[0] | known[1] | {"seed": seed}).items():
        if isinstance(value, int) and abs(value) > MAX_INT:
            raise ContradictionError(f"{where} has {name} = {value!r:.40}, which is too large")
    try:
        RunSpec(ModelSpec(**known[0]), seed, Protocol(**known[1]))
    except SpecError as error:
        raise ContradictionError(f"{where}: {error}") from None


def in_result(result: Data, protocol: Data, where: str) -> None:
    """Two values that contradict each other; `solved` must be what the accuracy says."""
    solved, ended, epochs = (result[name] for name in ("solved", "stopped_by", "epochs"))
    best, final = result["max_accuracy"], result["final_accuracy"]
    first, given = result.get("first_solved_epoch"), protocol.get("max_epochs")
    most = Protocol.max_epochs if given is None else given
    _raise_first(
        where,
        (solved != (best == 1), f"solved = {solved}, but max_accuracy = {best}"),
        (ended == "solved" and best != 1, f"stopped_by = {ended!r}, but max_accuracy = {best}"),
        (final > best, f"final_accuracy = {final}, but max_accuracy = {best}"),
        (epochs > most, f"epochs = {epochs}, but max_epochs = {most}"),
        (
            (first is not None) != (best == 1),
            f"first_solved_epoch = {first}, but max_accuracy = {best}",
        ),
        ((first or 0) > epochs, f"first_solved_epoch = {first}, but epochs = {epochs}"),
    )


def in_verification(found: Verification, where: str) -> None:
    """A verdict that the numbers contradict."""
    verdict, wrong, case = found.verdict, found.n_wrong, found.counterexample
    is_proved = verdict == "proved on all inputs"
    is_right = is_proved or verdict == "right on all inputs"
    proof = found.proof
    holds = proof is not None and proof.outcome == "proved" and (proof.least_margin or 0) > 0
    _raise_first(
        where,
        (
            (verdict == "refuted") != (case is not None),
            f"verdict = {verdict!r}, but counterexample = {case}",
        ),
        (is_right and wrong > 0, f"verdict = {verdict!r}, but n_wrong = {wrong}"),
        (
            is_right and not is_proved and not found.exhaustive,
            f"verdict = {verdict!r}, but exhaustive = False",
        ),
        (is_proved and not holds, f"verdict = {verdict!r}, but proof = {proof}"),
        (
            any(not _is_input(each, found.n_bits) for each in (found.worst, case) if each),
            f"n_bits = {found.n_bits}, but worst = {found.worst}, counterexample = {case}",
        ),
        (wrong > found.n_evaluated, f"n_wrong = {wrong}, but n_evaluated = {found.n_evaluated}"),
    )


def _is_input(case: Case, n_bits: int) -> bool:
    return len(case.bits) == n_bits and set(case.bits) <= set("01") and case.index <= n_bits


def _raise_first(where: str, *denials: tuple[bool, str]) -> None:
    for is_so, reason in denials:
        if is_so:
            raise ContradictionError(f"{where} has {reason}")
