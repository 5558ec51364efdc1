"""Records of the same weights: merged so that nothing known is lost, and whether trying or proving
again could add anything."""

from dataclasses import replace

from ithbit.store.records import PROVED, Verdict, VerificationRecord
from ithbit.verification.input_search import NEAR, margin_key
from ithbit.verification.stored_run import StoredRun

WRONG: tuple[Verdict, ...] = ("refuted", "unsettled")


def merge_records(before: VerificationRecord, fresh: VerificationRecord) -> VerificationRecord:
    """Two records of the same weights as one: `before` itself if `fresh` adds nothing.

    A wrong answer outweighs right ones. If a run was wrong before and is right now, also on the
    input on record, rounding decides: it is *unsettled*. If both agree, the record that tried more
    stays, with the least margin of both; one that is lower by no more than rounding may account for
    is nothing new. A proof stays.
    """
    was, now = before.found, fresh.found
    least_before, least_now = margin_key(was.worst), margin_key(now.worst)
    if was.verdict in WRONG and now.verdict not in WRONG:
        now = replace(now, verdict="unsettled")
    agree = was.verdict == now.verdict or {was.verdict, now.verdict}.isdisjoint(WRONG)
    weaker = _tried(before, fresh.budget, fresh.count) and was.exhaustive >= now.exhaustive
    if agree and weaker:
        if least_now >= least_before - NEAR * max(1.0, abs(least_before)):
            return before
        lower = replace(was, worst=now.worst, counterexample=now.counterexample)
        return replace(before, found=lower)
    if now.verdict != "refuted" and least_before < least_now:
        now = replace(now, worst=was.worst)
    if was.proof is not None and was.proof.outcome != "no bounds":
        now = now.with_proof(was.proof)
    return replace(fresh, found=now)


def merge_with_stored(
    stored: StoredRun, before: VerificationRecord | None, record: VerificationRecord
) -> VerificationRecord:
    """The record merged with what another process has stored since `before` was read: a wrong input
    that it found is not lost."""
    now = stored.read_verification()
    if now is None or now == before or now.weights_sha256 != record.weights_sha256:
        return record
    both, proof = merge_records(now, record), record.found.proof
    if proof is None or (proof.verdict is None and both.found.proof is not None):
        return both
    return replace(both, found=both.found.with_proof(proof))


def is_enough(record: VerificationRecord, budget: int, count: bool) -> bool:
    """Whether a record already says all that verifying again with this budget could."""
    return record.found.verdict == PROVED or _tried(record, budget, count)


def _tried(record: VerificationRecord, budget: int, count: bool) -> bool:
    """Whether as many inputs have been tried as this budget would try."""
    verification = record.found
    if verification.exhaustive or (verification.verdict == "refuted" and not count):
        return True
    return bool(verification.stages) and record.budget >= budget and record.count >= count


def may_be_proved(record: VerificationRecord, seconds: float) -> bool:
    """Whether a proof could add something to a record: the run is neither proved, refuted nor
    unsettled, and an earlier attempt, if any, was left open and had less time, or was never checked
    by a second implementation."""
    if record.found.verdict in (PROVED, *WRONG):
        return False
    before = record.found.proof
    if before is None or (before.outcome == "open" and before.seconds < seconds):
        return True
    if before.outcome in ("proved", "bounded"):
        # Confirmed by all there is for such blocks, or, in records of 0.2, by nobody.
        return not before.certificate_sha256
    return False
