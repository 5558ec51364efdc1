"""Verify one stored run: decide by its record what is left to do, do it, and store the result.

1. read the record that the folder has of these weights; a damaged one is reported
2. try inputs, unless the record says all that this could add (`run_verification.py`)
3. check the certificate or search for a proof, if one is wanted (`proofs/run_proof.py`)
4. merge with what another process has stored meanwhile (`record_merging.py`)
5. write the record, if it is new; a damaged one is renamed
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ithbit.engine.device import Device
from ithbit.errors import StoreError
from ithbit.store.folder import keep_verification
from ithbit.store.records import VerificationRecord
from ithbit.store.schema import UnreadableError
from ithbit.verification.proofs import run_proof
from ithbit.verification.proofs.branch_and_bound import SearchResult
from ithbit.verification.proofs.leaf_checks import OneByOne
from ithbit.verification.record_merging import is_enough, may_be_proved, merge_with_stored
from ithbit.verification.run_verification import try_inputs
from ithbit.verification.stored_run import StoredRun


@dataclass(frozen=True)
class VerifyOptions:
    """How runs are verified: where, on how many inputs, and whether a proof is wanted."""

    device: Device
    budget: int
    seed: int
    count: bool  # all wrong answers, not only the first
    again: bool  # whatever is on record
    prove: bool
    seconds: float  # for the search of a proof


@dataclass(frozen=True)
class VerifyOutcome:
    """The record of a run after it was verified, and what of it is new."""

    record: VerificationRecord
    worked: bool  # whether anything was tried or proved
    is_new: bool
    tries_are_new: bool
    proof_is_new: bool
    not_written: str  # the reason, for a new record whose folder cannot be written


def verify_stored(
    stored: StoredRun,
    options: VerifyOptions,
    watch: Callable[[SearchResult], None] | None = None,
    one_by_one: OneByOne = iter,
    note: Callable[[str], None] = lambda sentence: None,
) -> VerifyOutcome:
    """Verify a stored run and write its record. `watch` and `one_by_one` show how far a proof and
    its check are; `note` gets a sentence for each file that is damaged or does not hold."""
    damage = ""
    try:
        before = stored.load_verification()
    except UnreadableError as reason:
        before, damage = None, f"{stored.path}: {reason}; what it says does not count"
    record, is_tried = before, False
    if record is None or options.again or not is_enough(record, options.budget, options.count):
        record = try_inputs(
            stored, before, options.device, options.budget, options.seed, options.count
        )
        is_tried = True
    tries_are_new = before is None or _are_other_tries(record, before)
    proved = _wants_proof(stored, record, options, is_tried, bool(damage))
    if proved:
        seconds = options.seconds if options.prove else 0.0
        record = run_proof.prove_run(stored, record, seconds, watch, one_by_one, note)
    if record != before:
        record = merge_with_stored(stored, before, record)
    is_new, not_written = record != before, ""
    if is_new:
        try:
            renamed = keep_verification(stored.path, record)
            damage += f"; it is kept as {renamed.name}" if renamed and damage else ""
        except StoreError as error:  # a read-only store
            not_written = str(error)
    if damage:
        note(damage)
    proof_is_new = before is None or record.found.proof != before.found.proof
    return VerifyOutcome(
        record, is_tried or proved, is_new, tries_are_new, proof_is_new, not_written
    )


def _are_other_tries(record: VerificationRecord, before: VerificationRecord) -> bool:
    """Whether a record is of other tries than the one from before. It is not if only its least
    margin is lower: the verdict is still that of the tries on record."""
    was = before.found
    verification = replace(record.found, worst=was.worst, counterexample=was.counterexample)
    return replace(record, found=verification) != before


def _wants_proof(
    stored: StoredRun,
    record: VerificationRecord,
    options: VerifyOptions,
    is_tried: bool,
    damaged: bool,
) -> bool:
    """Whether to prove the run. If its record is damaged, a certificate in the folder counts all
    the same, and is checked again; so is one of a run that was tried and refuted now."""
    if damaged and (stored.path / run_proof.FILE).exists():
        return True
    proof = record.found.proof
    if is_tried and record.found.verdict == "refuted" and proof is not None and proof.verdict:
        return True  # it may be forged
    return options.prove and (options.again or may_be_proved(record, options.seconds))
