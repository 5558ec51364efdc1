"""The proof of a trained run, combined with what `verify` observed into one verdict.

A run that is refuted or unsettled stays so. Otherwise bounds over all inputs are sought; if they
are above 0, the certificate is made and all its leaves are bounded again, and only then is the
verdict *proved on all inputs*. `ithbit check-certificate` checks the certificate with separate
code where there is some.
"""

import hashlib
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load

from ithbit.errors import OutputError
from ithbit.models.classifier import token_vectors
from ithbit.models.stacked import linear
from ithbit.prove import certificate
from ithbit.prove.bounded import ARITHMETIC, NoBoundsError, bounds_for, is_one
from ithbit.prove.one_layer import Float32, Tables
from ithbit.prove.search import Found, part_of, read_part, search
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.records import Case, Proof, Verified
from ithbit.store.writing import write_whole
from ithbit.tasks.tokens import token_table
from ithbit.verify.search import alone
from ithbit.verify.verify import model_of, read_run

FILE, PART = "proof.json", "{}.part.safetensors"
SECONDS = 60.0


def prove_run(
    folder: Path,
    record: Verified,
    seconds: float = SECONDS,
    watch: Callable[[Found], None] | None = None,
) -> Verified:
    """Try to prove the run in a folder right on all inputs, or to refute it: its verification with
    the proof added. The certificate is written to the folder if that is writable."""
    run, weights = read_run(folder)
    if record.found.verdict in ("refuted", "unsettled"):
        return record
    proof, case = attempt(run, weights, folder / FILE, seconds, watch)
    found = replace(record.found, proof=proof)
    if proof.outcome == "proved":
        found = replace(found, verdict="proved on all inputs", method="proof")
    elif proof.outcome == "refuted":
        assert case is not None
        cpu = torch.device("cpu")
        (ran,) = alone(model_of(run, weights, cpu), [case], cpu)
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


def attempt(
    run: RunSpec,
    weights: bytes,
    file: Path,
    seconds: float = SECONDS,
    watch: Callable[[Found], None] | None = None,
) -> tuple[Proof, Case | None]:
    """Try to prove weights right, and write the certificate if they are: the proof, and the input
    of least margin met. An unfinished search is stored next to it, and the next one continues."""
    kept = file.with_name(PART.format(file.stem))
    with suppress(OSError):  # a read-only store
        file.unlink(missing_ok=True)
    sha = hashlib.sha256(weights).hexdigest()
    start = read_part(kept, sha)
    try:
        functionals = None if start is None else start[1]
        bounds = bounds_for(run.model, certificate.weights_of(weights), functionals)
    except (NoBoundsError, ArithmeticError):
        return Proof("no bounds"), None

    def keep(found: Found) -> None:
        with suppress(OutputError):
            write_whole(kept, part_of(found, bounds.functionals, sha))

    found = search(bounds, seconds, watch=watch, start=start and start[0], keep=keep)
    if found.outcome == "open":
        keep(found)
    else:
        with suppress(OSError):
            kept.unlink(missing_ok=True)
    case = Case(found.bits, found.index, found.least_found)
    proof = Proof(
        found.outcome,
        least_found=found.least_found if math.isfinite(found.least_found) else None,
        found_at=f"bits {found.bits}, index {found.index}",
        share_closed=found.share_closed,
        nodes=found.nodes,
        leaves=len(found.leaves),
        seconds=found.seconds,
        arithmetic=ARITHMETIC,
    )
    if found.outcome == "proved":
        content = certificate.document(run, weights, found.leaves, bounds.functionals)
        confirmed = certificate.confirmed(content, weights, same_bounds=True)
        proof = replace(proof, least_margin=confirmed.margin)
        proof = replace(proof, least_float32=_as_float32(run.model, weights, seconds / 4))
        with suppress(OutputError):
            certificate.write(file, content)
            proof = replace(proof, certificate=file.name)
    return proof, case


def _as_float32(spec: ModelSpec, weights: bytes, seconds: float) -> float | None:
    """A lower bound on float32's margin on all inputs, see `Float32`; None if none is proved."""
    if not is_one(spec):
        return None
    bounds = Float32(spec, certificate.weights_of(weights), tables_of(spec, weights))
    found = search(bounds, seconds)
    return found.least_proved if found.outcome == "proved" else None


def tables_of(spec: ModelSpec, weights: bytes) -> Tables:
    """Every token before attention, as float32 computes it on this CPU."""
    params = {name: value[None] for name, value in load(weights).items()}
    rows = token_vectors(params, spec, token_table(spec.task, spec.n_bits))
    d, weight, bias = spec.d_model, params["blocks.0.qkv.weight"], params["blocks.0.qkv.bias"]
    q = linear(rows, weight[:, :d], bias[:, :d])  # apart from keys and values, as in the block
    k, v = linear(rows, weight[:, d:], bias[:, d:]).split(d, -1)
    return Tables(*(each[0].double().numpy() for each in (rows, q, k, v)))
