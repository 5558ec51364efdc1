"""Records that are complete but cannot be true, because their values contradict each other."""

from collections.abc import Mapping
from typing import Any

from ithbit.spec import Protocol
from ithbit.store.records import BOUNDED, PROVED, Case, Proof, Verification
from ithbit.store.schema import ContradictionError

Data = Mapping[str, Any]  # by field name: a JSON record, or a row of a table


def check_result(result: Data, protocol: Data, where: str) -> None:
    """Refuse values that contradict each other; `solved` must be what the accuracy says."""
    solved, stopped_by, epochs = (result[name] for name in ("solved", "stopped_by", "epochs"))
    best, final = result["max_accuracy"], result["final_accuracy"]
    first, max_epochs = result.get("first_solved_epoch"), protocol.get("max_epochs")
    most = Protocol.max_epochs if max_epochs is None else max_epochs
    n_tried, wrong = result.get("structured_tried"), result.get("structured_wrong")
    _raise_first(
        where,
        (solved != (best == 1), f"solved = {solved}, but max_accuracy = {best}"),
        (
            stopped_by == "solved" and best != 1,
            f"stopped_by = {stopped_by!r}, but max_accuracy = {best}",
        ),
        (final > best, f"final_accuracy = {final}, but max_accuracy = {best}"),
        (epochs > most, f"epochs = {epochs}, but max_epochs = {most}"),
        (
            (first is not None) != (best == 1),
            f"first_solved_epoch = {first}, but max_accuracy = {best}",
        ),
        ((first or 0) > epochs, f"first_solved_epoch = {first}, but epochs = {epochs}"),
        (
            (wrong or 0) > (n_tried or 0),
            f"structured_wrong = {wrong}, but structured_tried = {n_tried}",
        ),
    )


def check_verification(verification: Verification, where: str) -> None:
    """Refuse a verdict that the numbers contradict."""
    verdict, wrong, case = verification.verdict, verification.n_wrong, verification.counterexample
    is_proved = verdict in (PROVED, BOUNDED)
    is_right = is_proved or verdict == "right on all inputs"
    unrefuted = is_right or verdict == "not refuted"
    proof = verification.proof
    claims = is_proved or (unrefuted and proof is not None and proof.verdict is not None)
    holds = proof is not None and proof.verdict is not None and _is_bound(proof)
    stages = verification.stages or []
    wrong_too = any(verification.wrong_by_index.values()) or any(stage["wrong"] for stage in stages)
    _raise_first(
        where,
        (
            (verdict == "refuted") != (case is not None),
            f"verdict = {verdict!r}, but counterexample = {case}",
        ),
        (unrefuted and wrong > 0, f"verdict = {verdict!r}, but n_wrong = {wrong}"),
        (unrefuted and wrong_too, f"verdict = {verdict!r}, but wrong answers in its stages"),
        (
            verification.exhaustive and bool(stages) and stages[-1]["name"] != "all inputs",
            "exhaustive = True, but its last stage did not try all inputs",
        ),
        (
            is_right and not is_proved and not verification.exhaustive,
            f"verdict = {verdict!r}, but exhaustive = False",
        ),
        (claims and not holds, f"verdict = {verdict!r}, but proof = {proof}"),
        (
            unrefuted and not verification.worst.right,
            f"verdict = {verdict!r}, but worst = {verification.worst}",
        ),
        (
            proof is not None and proof.outcome == "refuted" and unrefuted,
            f"verdict = {verdict!r}, but proof = {proof}",
        ),
        (
            any(
                not _is_input(each, verification.n_bits)
                for each in (verification.worst, case)
                if each
            ),
            f"n_bits = {verification.n_bits}, but worst = {verification.worst}, "
            f"counterexample = {case}",
        ),
        (
            wrong > verification.n_evaluated,
            f"n_wrong = {wrong}, but n_evaluated = {verification.n_evaluated}",
        ),
        (
            verification.n_inputs.bit_length()
            != (verification.n_bits.bit_length() + verification.n_bits)
            or verification.n_inputs != verification.n_bits << verification.n_bits,
            f"n_inputs = {verification.n_inputs}, but n_bits = {verification.n_bits}",
        ),
        (
            verification.exhaustive and verification.n_evaluated != verification.n_inputs,
            f"exhaustive = True, but n_evaluated = {verification.n_evaluated}",
        ),
    )


def _is_bound(proof: Proof) -> bool:
    """Whether what a record says of a proof is what a proof says: a bound above 0 on all inputs,
    and no input that was met is below it."""
    least, printed = proof.least_margin or 0.0, proof.least_found
    return 0 < least <= (least if printed is None else printed) and not proof.refused


def _is_input(case: Case, n_bits: int) -> bool:
    return len(case.bits) == n_bits and set(case.bits) <= set("01") and case.index <= n_bits


def _raise_first(where: str, *denials: tuple[bool, str]) -> None:
    for is_so, reason in denials:
        if is_so:
            raise ContradictionError(f"{where} has {reason}")
