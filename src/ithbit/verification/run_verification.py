"""Refute trained weights where that is easy, try them on all inputs where feasible, else search.

In order: structured inputs, densities, descent from the least margins, strings with two bits and
descent again (`search.py`); then all inputs, or a search within the budget. The first wrong answer
ends it, unless all are to be counted.

Compiled code has the plain models check its words: where it differs from them by more than half of
the least margin, all is tried again with the plain models.

The record is `verification.json` in the run folder. What it says is *observed*: float evaluation of
the stored weights on the device and in the dtype that it names, input by input. It does not certify
the real-valued function, and another device may round a margin near 0 to the other side. The
weights are those at the end of training, while the paper's criterion looks at the best epoch.

What is known of a run's weights is never lost: verifying again tries a wrong input on record first
and joins the two records (`joined`). A least margin may thus be from another device than the named.
"""

import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import load
from torch import Tensor

from ithbit.engine.device import Device, describe_environment, usable_cores
from ithbit.engine.evaluate import batch_that_fits
from ithbit.engine.memory import need_memory
from ithbit.engine.steppers.choice import evaluator_here
from ithbit.errors import SpecError, StoreError, TooLargeError
from ithbit.models.classifier import logits as plain_logits
from ithbit.models.classifier import shapes, with_buffers
from ithbit.models.recorded_layer import learn_recorded
from ithbit.models.stacked import Params
from ithbit.models.user_code import explained
from ithbit.spec import RunSpec, run_from_json
from ithbit.store import reading
from ithbit.store.folder import RunFolder, keep_verification
from ithbit.store.reading import open_regular, read_verification
from ithbit.store.records import PROVED, Case, Verdict, Verification, VerificationRecord
from ithbit.store.schema import UnreadableError
from ithbit.store.status import folder_status, need_runs
from ithbit.tasks.sampling import Examples
from ithbit.tasks.structured import structured_bytes
from ithbit.tasks.tokens import token_table
from ithbit.verification import input_search
from ithbit.verification.input_search import (
    NEAR,
    TRUSTED,
    Asker,
    Model,
    RefutedError,
    alone,
    in_chunks,
    order,
    tensors,
)

ALWAYS = 1 << 20  # the number of inputs at n = 16; up to here all are tried, whatever the budget
_CUDA_ALWAYS = 22 << 22  # on a GPU up to n = 22
LONGEST = 14_267  # n · 2^n has 4,300 digits, the longest integer that Python prints by default
_BATCH = 1 << 17  # up to here, trying all inputs at once is no more work than the likely ones first
_WRONG: tuple[Verdict, ...] = ("refuted", "unsettled")


def examine(
    model: Model,
    n_bits: int,
    device: torch.device,
    budget: int = ALWAYS,
    seed: int = 0,
    workers: int | None = None,
    count: bool = False,
    always: int | None = None,
    known: Sequence[Case] = (),
) -> Verification:
    """Refute a model or try every input if there are at most `budget` of them, else search.

    Up to n = 16 (on a GPU n = 22) all inputs are tried whatever the budget; `always` sets another
    number of inputs for that. The first wrong answer ends it unless `count` is set. Inputs
    `known` to be wrong come first. Inputs that are wrong or nearly so are evaluated again one
    by one, those of least margin and at most 256 (8 if a wrong answer ended it); a counterexample
    is one that fails then.
    """
    if budget < 1:
        raise SpecError(f"the budget is a number of inputs from 1, got {budget}")
    started = time.perf_counter()
    n_inputs = n_bits << n_bits
    if always is None:
        always = _CUDA_ALWAYS if device.type == "cuda" else ALWAYS
    feasible = n_inputs <= max(budget, always)
    stages: list[dict[str, Any]] = []
    most: int | None = None  # how many of the wrong ones to evaluate again
    with in_chunks(model, device, workers or usable_cores()) as chunked:
        ask = Asker(chunked, model, device, count)

        def stage(name: str, action: Callable[..., object], *arguments: int) -> None:
            """Run one stage and record it, however it ends."""
            tried, wrong, began = ask.tally.n_evaluated, ask.tally.n_wrong, time.perf_counter()
            try:
                action(ask, n_bits, *arguments)
            finally:
                done = {"tried": ask.tally.n_evaluated - tried, "wrong": ask.tally.n_wrong - wrong}
                stages.append({"name": name, **done, "seconds": time.perf_counter() - began})

        try:
            if not (feasible and (count or n_inputs <= _BATCH)):
                if known:
                    stage("on record", lambda ask, _: ask(*tensors(known, device)))
                stage("structured", input_search.structured, budget // 8)
                stage("densities", input_search.densities, budget // 64, seed)
                stage("descent", input_search.descent, budget // 16)
                stage("two bits", input_search.structured, budget // 4, True)
                stage("descent", input_search.descent, budget // 16)
            if feasible:  # counts every input once, also those tried above
                ask = Asker(chunked, model, device, count or n_inputs <= _BATCH)
                stage("all inputs", _everything)
            else:
                stage("search", input_search.search, budget - ask.tally.n_evaluated, seed)
        except RefutedError:
            most = TRUSTED
        tally = ask.tally
        near = [case for case in tally.least if case.margin is None or case.margin < NEAR]
        cases = alone(model, near[:most] or tally.least[:1], device)
    failing = [case for case in cases if not case.right]
    exhaustive = tally.n_evaluated == n_inputs and stages[-1]["name"] == "all inputs"
    verdict: Verdict = "right on all inputs" if exhaustive else "not refuted"
    if failing:
        verdict = "refuted"
    elif any(done["wrong"] for done in stages):  # in a batch, but not alone
        verdict = "unsettled"
    return Verification(
        verdict,
        exhaustive,
        n_bits,
        n_inputs,
        tally.n_evaluated,
        max(tally.n_wrong, len(failing)),
        tally.n_near,
        tally.wrong_by_index or dict(sorted(Counter(case.index for case in failing).items())),
        cases[0],
        failing[0] if failing else None,
        time.perf_counter() - started,
        stages[-1]["name"],
        stages,
    )


def _everything(ask: Asker, n_bits: int) -> None:
    """Try every input: strings in binary order, each with every index."""
    shifts = torch.arange(n_bits - 1, -1, -1, device=ask.device)
    total = n_bits << n_bits
    for start in range(0, total, _BATCH):
        number = torch.arange(start, min(start + _BATCH, total), device=ask.device)
        string = torch.div(number, n_bits, rounding_mode="floor")
        index = number - string * n_bits + 1
        ask(((string[:, None] >> shifts) & 1).to(torch.uint8), index)


def read_run(folder: Path) -> tuple[RunSpec, bytes]:
    """The spec of a finished run folder and the bytes of its weights file."""
    record = read_result(folder)
    try:
        run = run_from_json(record["spec"])
    except (KeyError, TypeError, ValueError) as error:  # not a spec of this version
        raise StoreError(f"{folder} holds no readable run: {error}; restore the folder") from error
    try:
        with open_regular(folder / "weights.safetensors") as file:
            size = os.fstat(file.fileno()).st_size
            advice = "a run's weights are smaller; restore the file"
            need_memory(f"reading the weights of {run.name}", 3 * size, advice)
            weights = file.read()
    except OSError as error:
        raise StoreError(
            f"{folder} has no weights.safetensors that can be read ({error.strerror}), though its "
            "run is finished; restore the file, or move the folder away and train the run again"
        ) from error
    if (origin := RunFolder(folder.parent, run).layer()) and origin.source:
        learn_recorded(origin.code, origin.source, folder.parent)
    if not run.model.code:  # its code is not run before the model is needed
        _check_tensors(run, weights)
    return run, weights


def read_result(folder: Path) -> dict[str, Any]:
    """The complete result of a run folder; raises `StoreError` with the reason if it has none."""
    try:
        state, record = reading.read_run(str(folder))
    except UnreadableError as reason:
        raise StoreError(f"{folder} holds no readable run: {reason}") from None
    if state != "finished":
        raise StoreError(
            f"{folder} has no result.json: only a finished run has weights; finish it first"
        )
    return record


def _check_tensors(run: RunSpec, weights: bytes) -> list[str]:
    """The names of a run's parameters, in order; raises `StoreError` unless the file has just
    these, with the right shapes and in float32. Nothing larger than the file is allocated, whatever
    the spec says."""
    try:
        given = dict(deserialize(weights))
    except SafetensorError as error:
        raise StoreError(f"the weights of {run.name} are damaged: {error}") from error
    for name, each in sorted(given.items()):
        if each["dtype"] != "F32":
            raise StoreError(
                f"the weights of {run.name} are not float32: {name!r:.80} is {each['dtype']}; "
                "restore the folder"
            )
    found = {name: tuple(each["shape"]) for name, each in given.items()}
    expected = shapes(run.model, run.seed, len(found), sum(map(math.prod, found.values())))
    if found != expected:
        raise StoreError(f"the weights of {run.name} do not fit its model; restore the folder")
    return list(expected)


def params_of(run: RunSpec, weights: bytes) -> Params:
    """The parameters of a run from the bytes of its weights file."""
    names, params = _check_tensors(run, weights), load(weights)
    return {name: params[name] for name in names}  # safetensors gives them in any order


def _stack_of(run: RunSpec, weights: bytes, device: torch.device) -> Params:
    """The parameters of a run as a stack of one."""
    params = params_of(run, weights)
    return {name: value.unsqueeze(0).to(device) for name, value in params.items()}


def model_of(run: RunSpec, weights: bytes, device: torch.device, plain: bool = False) -> Model:
    """The trained model of a run as a function of inputs, in float32; by the plain models if that
    is asked for."""
    stacked = with_buffers(_stack_of(run, weights, device), run.model, [run.seed])
    table = token_table(run.model.task, run.model.n_bits, device=device)
    logits = plain_logits if plain else evaluator_here(run.model, stacked, device)[0]

    def model(bits: Tensor, index: Tensor) -> Tensor:
        size = batch_that_fits(run.model, bits.shape[1], len(index))
        parts = map(Examples, bits[None].split(size, 1), index[None].split(size, 1))
        with explained(f"{run.model.family} fails") if run.model.code else nullcontext():
            return torch.cat([logits(stacked, run.model, table, part)[0] for part in parts])

    return model


def verify_run(
    folder: Path,
    device: Device,
    budget: int = ALWAYS,
    seed: int = 0,
    count: bool = False,
    always: int | None = None,
) -> Verification:
    """Verify the run of a folder and store the record there; see `verified`."""
    record = verified(folder, device, budget, seed, count, always)
    keep_verification(folder, record)
    return record.found


def verified(
    folder: Path,
    device: Device,
    budget: int,
    seed: int,
    count: bool,
    always: int | None = None,
) -> VerificationRecord:
    """Verify the run of a folder (see `examine`), joined with what is on record of its weights."""
    run, weights = read_run(folder)
    check_length(run, budget)
    before = read_verification(str(folder))
    known: list[Case] = []
    if before is not None and before.found.verdict in _WRONG:
        known = [before.found.counterexample or before.found.worst]
    model = model_of(run, weights, device.torch)
    n_bits, where = run.model.n_bits, device.torch

    def by(model: Model) -> Verification:
        return examine(model, n_bits, where, budget, seed, None, count, always, known)

    found, digest = by(model), hashlib.sha256(weights).hexdigest()
    _, path = evaluator_here(run.model, _stack_of(run, weights, where), where)
    if path == "compiled":
        plain = model_of(run, weights, where, plain=True)
        if not input_search.agree(model, plain, found, seed):
            was, found, path = found, by(plain), "stacked"
            if was.verdict in _WRONG and found.verdict not in _WRONG:
                found = replace(found, verdict="unsettled")
    environment = describe_environment(device) | {"path": path}
    fresh = VerificationRecord(
        run.run_id, run.name, digest, "float32", budget, seed, found, environment, count
    )
    return fresh if before is None else joined(before, fresh)


def joined(before: VerificationRecord, fresh: VerificationRecord) -> VerificationRecord:
    """What two records of the same weights say together: `before` itself if `fresh` adds nothing.

    A wrong answer outweighs right ones. If a run was wrong before and is right now, also on the
    input on record, rounding decides: it is *unsettled*. If both agree, the record that tried more
    stays, with the least margin of both; one that is lower by no more than rounding may account for
    is nothing new. A proof stays.
    """
    was, now = before.found, fresh.found
    known, least = order(was.worst), order(now.worst)
    if was.verdict in _WRONG and now.verdict not in _WRONG:
        now = replace(now, verdict="unsettled")
    agree = was.verdict == now.verdict or {was.verdict, now.verdict}.isdisjoint(_WRONG)
    weaker = _tried(before, fresh.budget, fresh.count) and was.exhaustive >= now.exhaustive
    if agree and weaker:
        if least >= known - NEAR * max(1.0, abs(known)):
            return before
        lower = replace(was, worst=now.worst, counterexample=now.counterexample)
        return replace(before, found=lower)
    if now.verdict != "refuted" and known < least:
        now = replace(now, worst=was.worst)
    if was.proof is not None and was.proof.outcome != "no bounds":
        now = now.with_proof(was.proof)
    return replace(fresh, found=now)


def with_stored(
    folder: Path, before: VerificationRecord | None, record: VerificationRecord
) -> VerificationRecord:
    """The record joined with what another process has stored since `before` was read: a wrong input
    that it found is not lost."""
    there = read_verification(str(folder))
    if there is None or there == before or there.weights_sha256 != record.weights_sha256:
        return record
    both, proof = joined(there, record), record.found.proof
    if proof is None or (proof.verdict is None and both.found.proof is not None):
        return both
    return replace(both, found=both.found.with_proof(proof))


def check_length(run: RunSpec, budget: int) -> None:
    """Raise `TooLargeError` for a run whose inputs are too long to be tried or counted."""
    n, what = run.model.n_bits, f"verifying {run.name}"
    if n > LONGEST:
        raise TooLargeError(
            f"{what} is not possible: runs are verified up to n = {LONGEST:,}, where the number of "
            f"inputs can be written down, got n = {n:,}"
        )
    two_bits = 3 * n * min(n * (n - 1), budget // (4 * n))
    need_memory(what, max(structured_bytes(n), two_bits), "take a smaller --budget or a shorter n")


def is_enough(record: VerificationRecord, budget: int, count: bool) -> bool:
    """Whether a record already says all that verifying again with this budget could."""
    return record.found.verdict == PROVED or _tried(record, budget, count)


def _tried(record: VerificationRecord, budget: int, count: bool) -> bool:
    """Whether as many inputs have been tried as this budget would try."""
    found = record.found
    if found.exhaustive or (found.verdict == "refuted" and not count):
        return True
    return bool(found.stages) and record.budget >= budget and record.count >= count


def may_be_proved(record: VerificationRecord, seconds: float) -> bool:
    """Whether a proof could add something to a record: the run is neither proved, refuted nor
    unsettled, and an earlier attempt, if any, was left open and had less time, or was never checked
    by a second implementation."""
    if record.found.verdict in (PROVED, *_WRONG):
        return False
    before = record.found.proof
    if before is None or (before.outcome == "open" and before.seconds < seconds):
        return True
    if before.outcome in ("proved", "bounded"):
        # Confirmed by all there is for such blocks, or, in records of 0.2, by nobody.
        return not before.certificate_sha256
    return False


def finished_folders(store: Path) -> list[Path]:
    """The folders of finished runs and of those set aside; raises `StoreError` if none exist."""
    folders = [store / name for _, name in need_runs(store)]
    found = [folder for folder in folders if folder_status(folder) in ("done", "set aside")]
    if not found:
        raise StoreError(f"no run of the store {store} has finished; `ithbit status` lists them")
    return found
