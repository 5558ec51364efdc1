"""The proof of a trained run, combined with what `verify` observed into one verdict.

A run that is refuted or unsettled stays so. A certificate in the run's folder that is confirmed
decides it. Otherwise bounds over all inputs are sought; if they are above 0, the certificate is
made, its bytes are read again and confirmed by the second implementation (`checks/`), and only
then is the verdict *proved on all inputs*. Where there is none, the same bounds are computed again,
and the verdict is *bounded (unchecked)*. The file is replaced only by a certificate that was
confirmed.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load

from ithbit.errors import OutputError
from ithbit.models.classifier import token_vectors
from ithbit.models.stacked import linear
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.linked_files import need_within, read_regular
from ithbit.store.records import SECOND, Case, Proof, VerificationRecord
from ithbit.store.writing import write_output
from ithbit.tasks.tokens import token_table
from ithbit.theory.certificate_file import CertificateError
from ithbit.theory.layers import FloatArray
from ithbit.verification.checks.interface import CachedLeafCheck
from ithbit.verification.input_search import evaluate_singly
from ithbit.verification.proofs import certificate
from ithbit.verification.proofs.branch_and_bound import SearchResult, part_of, read_part, search
from ithbit.verification.proofs.certificate import Confirmed
from ithbit.verification.proofs.interface import Leaves, MarginBounds, NoBoundsError
from ithbit.verification.proofs.kinds import bounds_for, kind_of, second_check_for
from ithbit.verification.proofs.leaf_checks import OneByOne, checked_leaves
from ithbit.verification.proofs.one_layer import Float32, Tables
from ithbit.verification.record_merging import WRONG
from ithbit.verification.run_verification import model_of
from ithbit.verification.stored_run import StoredRun

FILE, PART = "proof.json", "{}.part.safetensors"
SECONDS = 60.0
_AGAIN = 1 - 1e-3  # of a bound is stated where the second implementation does not confirm it

Say = Callable[[str], None]


def prove_run(
    stored: StoredRun,
    record: VerificationRecord,
    seconds: float = SECONDS,
    watch: Callable[[SearchResult], None] | None = None,
    one_by_one: OneByOne = iter,
    say: Say = lambda sentence: None,
) -> VerificationRecord:
    """Try to prove a stored run right on all inputs, or to refute it: its verification with the
    proof added. A certificate that exists and holds is taken; with no seconds, nothing else is
    tried. A new one is written to the folder if that is writable. `one_by_one` shows how far the
    check of a certificate is, and `say` gets a sentence about a file that is refused. Raises
    `StoreError` if the record is not about the weights in the folder."""
    run, weights, file = stored.spec, stored.weights, stored.path / FILE
    stored.check_unchanged(record.weights_sha256)
    before, is_wrong = record.found.proof, record.found.verdict in WRONG
    if is_wrong and (before is None or before.verdict is None):
        return record
    confirmed = confirm_certificate(run, weights, file, before, one_by_one, say)
    if is_wrong:  # a proof on record is checked all the same
        return replace(record, found=replace(record.found, proof=confirmed))
    if confirmed is not None:
        return replace(record, found=record.found.with_proof(confirmed))
    if not seconds > 0:
        return record
    proof, case = search_proof(run, weights, file, seconds, watch, one_by_one, say)
    found = record.found.with_proof(proof)
    if proof.outcome == "refuted":
        assert case is not None
        cpu = torch.device("cpu")
        (ran,) = evaluate_singly(model_of(run, weights, cpu), [case], cpu)
        if ran.right:  # its margin is 0 within rounding
            found = replace(found, verdict="unsettled", method="proof")
        else:
            found = replace(
                found,
                verdict="refuted",
                method="proof",
                n_evaluated=found.n_evaluated + 1,
                n_wrong=1,
                wrong_by_index={ran.index: 1},
                worst=ran,
                counterexample=ran,
                exhaustive=False,
            )
    return replace(record, found=found)


def confirm_certificate(
    run: RunSpec,
    weights: bytes,
    file: Path,
    before: Proof | None = None,
    one_by_one: OneByOne = iter,
    say: Say = lambda sentence: None,
) -> Proof | None:
    """What the certificate in a file proves of a run with these weights, confirmed here; None if
    there is none or it does not hold, which `say` gets. What a record has of its search stays."""
    try:
        data = read_regular(file)
    except FileNotFoundError:
        return None
    except OSError as reason:
        say(f"{file} cannot be read and does not count: {reason.strerror}")
        return None
    try:
        held = certificate.confirmed_bytes(data, weights, run, one_by_one)
    except CertificateError as reason:
        say(f"{file} does not hold and does not count: {reason}")
        return None
    same = before is not None and (before.least_margin, before.leaves) == (held.margin, held.leaves)
    effort = before if before is not None and same else Proof("open", arithmetic=held.arithmetic)
    return _of_certificate(effort, held, data, file)


def _of_certificate(search: Proof, held: Confirmed, data: bytes, file: Path) -> Proof:
    """The proof that a confirmed certificate gives, with the effort of its search."""
    return replace(
        search,
        outcome="proved" if held.checked else "bounded",
        least_margin=held.margin,
        share_closed=1.0,
        refused="",
        leaves=held.leaves,
        checked=held.checked,
        certificate=file.name,
        certificate_sha256=hashlib.sha256(data).hexdigest(),
    )


def search_proof(
    run: RunSpec,
    weights: bytes,
    file: Path,
    seconds: float = SECONDS,
    watch: Callable[[SearchResult], None] | None = None,
    one_by_one: OneByOne = iter,
    say: Say = lambda sentence: None,
) -> tuple[Proof, Case | None]:
    """Search for a proof of weights, and write the certificate if it is confirmed: the proof, and
    the input of least margin met. An unfinished search is stored next to it, and the next one
    continues."""
    part, kind = file.with_name(PART.format(file.stem)), kind_of(run.model)
    if kind is None:
        return Proof("no bounds"), None
    sha = hashlib.sha256(weights).hexdigest()
    try:
        start = read_part(part, sha, run.model.n_bits)
        if start is not None and len(start[1]) and not kind.may_be_limited:
            raise CertificateError(f"a search of {kind.models} has no functionals")
    except CertificateError as reason:
        start = None
        say(f"{part} is refused, and the search starts afresh: {reason}")
    try:
        params = certificate.weights_of(weights)
        bounds = bounds_for(run.model, params, None if start is None else start[1])
    except (NoBoundsError, CertificateError, ArithmeticError):
        return Proof("no bounds"), None
    except MemoryError:
        say(f"the bounds of {run.name} need more memory than there is")
        return Proof("no bounds"), None

    def keep(found: SearchResult) -> None:
        with suppress(OutputError):
            _write(part, part_of(found, bounds.functionals, sha))

    first = start and start[0]
    try:
        found = search(bounds, seconds, watch, first, keep, tighten=kind.tighten)
    except MemoryError:
        say(f"the search for a proof of {run.name} needs more memory than there is")
        return Proof("no bounds"), None
    if found.outcome == "open":
        keep(found)
    else:
        with suppress(OSError):
            need_within(part.parent)
            part.unlink(missing_ok=True)
    case = Case(found.bits, found.index, found.least_found)
    proof = Proof(
        "open",
        least_found=found.least_found if math.isfinite(found.least_found) else None,
        found_at=f"bits {found.bits}, index {found.index}" if found.bits else "",
        share_closed=min(found.share_closed, 1.0),  # a sum of fractions
        nodes=found.nodes,
        leaves=len(found.leaves),
        seconds=found.seconds,
        arithmetic=kind.arithmetic,
    )
    if found.outcome == "proved":
        proof = _certified(run, weights, proof, found, bounds, file, one_by_one)
        if proof.verdict is not None:
            proof = replace(proof, least_float32=_as_float32(run.model, weights, seconds / 4))
    elif found.outcome == "refuted":
        checked = SECOND if kind.check is not None else ""
        if not checked or _is_wrong(run.model, params, case):
            proof = replace(proof, outcome="refuted", checked=checked)
    return proof, case


def _write(path: Path, data: bytes) -> None:
    """Write a file into a run folder; raises `OutputError`, also if that leads out of the store."""
    try:
        need_within(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    write_output(path, data)


def _certified(
    run: RunSpec,
    weights: bytes,
    proof: Proof,
    found: SearchResult,
    bounds: MarginBounds,
    file: Path,
    one_by_one: OneByOne,
) -> Proof:
    """The search with its certificate, if that is confirmed from the bytes of its file, which is
    written only then; else with the reason why not."""
    kind, remembering = kind_of(run.model), None
    leaves: Leaves = found.leaves
    assert kind is not None  # it has bounds
    try:
        with suppress(ArithmeticError):  # weights that the check does not bear
            check = second_check_for(run.model, certificate.weights_of(weights))
            remembering = None if check is None else CachedLeafCheck(check)
        if remembering is not None:
            common = checked_leaves(remembering, leaves, kind.close, one_by_one)
            # Bounded again by the search's own code, whose bounds differ a little with the batch.
            again = Leaves(leaves.index, leaves.bits, leaves.limits, leaves.lower * _AGAIN)
            leaves = again if common is None else common
        content = certificate.document(run, weights, leaves, bounds.functionals)
        data = certificate.encoded(content)
        held = certificate.confirmed_bytes(data, weights, run, one_by_one, remembering)
    except (CertificateError, NoBoundsError, ArithmeticError) as reason:
        return replace(proof, refused=str(reason))
    proof = _of_certificate(proof, held, data, file)
    try:
        _write(file, data)
    except OutputError:  # a read-only store, or a full disk: to be sought again
        return replace(proof, certificate="", certificate_sha256="")
    return proof


def _is_wrong(spec: ModelSpec, params: Mapping[str, FloatArray], case: Case) -> bool:
    """Whether the second implementation finds an input wrong too."""
    try:
        check, bits = second_check_for(spec, params), [int(bit) for bit in case.bits]
        return check is not None and check.is_wrong(case.index - 1, bits)
    except ArithmeticError:
        return False


def _as_float32(spec: ModelSpec, weights: bytes, seconds: float) -> float | None:
    """A lower bound on float32's margin on all inputs, see `Float32`; None if none is proved."""
    kind = kind_of(spec)
    if kind is None or kind.name != "one-layer":
        return None
    try:
        bounds = Float32(spec, certificate.weights_of(weights), tables_of(spec, weights))
        found = search(bounds, seconds)
    except (NoBoundsError, ArithmeticError):  # weights that float32 does not bear
        return None
    return found.least_proved if found.outcome == "proved" else None


def tables_of(spec: ModelSpec, weights: bytes) -> Tables:
    """Every token before attention, as float32 computes it on this CPU."""
    params = {name: value[None] for name, value in load(weights).items()}
    rows = token_vectors(params, spec, token_table(spec.task, spec.n_bits))
    d, weight, bias = spec.d_model, params["blocks.0.qkv.weight"], params["blocks.0.qkv.bias"]
    q = linear(rows, weight[:, :d], bias[:, :d])  # apart from keys and values, as in the block
    k, v = linear(rows, weight[:, d:], bias[:, d:]).split(d, -1)
    return Tables(*(each[0].double().numpy() for each in (rows, q, k, v)))
