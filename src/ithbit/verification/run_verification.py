"""Refute trained weights where that is easy, try them on all inputs where feasible, else search.

In order: structured inputs, densities, descent from the least margins, strings with two bits and
descent again (`input_search.py`); then all inputs, or a search within the budget. The first wrong
answer ends it, unless all are to be counted.

What compiled code finds is checked by the stacked models: where the two differ by more than half of
the least margin, everything is tried again with the stacked models.

The record is `verification.json` in the run folder. What it says is *observed*: float evaluation of
the stored weights on the device and in the dtype that it names, input by input. It does not certify
the real-valued function, and another device may round a margin near 0 to the other side. The
weights are those at the end of training, while the paper's criterion looks at the best epoch.

What is known of a run's weights is never lost: verifying again tries a wrong input on record first
and merges the two records (`record_merging.py`). So a least margin may be from another device
than the named.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from ithbit.engine.device import Device, describe_environment, usable_cores
from ithbit.engine.evaluate import Logits, batch_that_fits
from ithbit.engine.memory import need_memory
from ithbit.engine.steppers import StepperName
from ithbit.engine.steppers.choice import evaluator_here
from ithbit.errors import SpecError, TooLargeError
from ithbit.models.classifier import logits as stacked_logits
from ithbit.models.classifier import with_buffers
from ithbit.models.stacked import Params
from ithbit.models.user_code import explained
from ithbit.spec import RunSpec
from ithbit.store.folder import keep_verification
from ithbit.store.records import Case, Verdict, Verification, VerificationRecord
from ithbit.tasks.sampling import Examples
from ithbit.tasks.structured import structured_bytes
from ithbit.tasks.tokens import token_table
from ithbit.verification import input_search
from ithbit.verification.input_search import (
    MOST_CONFIRMED,
    NEAR,
    InputEvaluator,
    Model,
    RefutedError,
    evaluate_singly,
    in_chunks,
    margin_key,
    tensors,
)
from ithbit.verification.record_merging import WRONG, merge_records
from ithbit.verification.stored_run import StoredRun, check_tensors, read_stored_run

ALWAYS = 1 << 20  # the number of inputs at n = 16; up to here all are tried, whatever the budget
_CUDA_ALWAYS = 22 << 22  # on a GPU up to n = 22
LONGEST = 14_267  # n · 2^n has 4,300 digits, the longest integer that Python prints by default
_BATCH = 1 << 17  # up to here, trying all inputs at once is no more work than the likely ones first
_ROUNDING = 16  # times what the few inputs of least margin move by when alone, others may move


def verify_model(
    model: Model,
    n_bits: int,
    device: torch.device,
    budget: int = ALWAYS,
    seed: int = 0,
    workers: int | None = None,
    count: bool = False,
    always: int | None = None,
    wrong_before: Sequence[Case] = (),
) -> Verification:
    """Refute a model or try every input if there are at most `budget` of them, else search.

    Up to n = 16 (on a GPU n = 22) all inputs are tried whatever the budget; `always` sets another
    number of inputs for that. The first wrong answer ends it unless `count` is set. Inputs that
    were `wrong_before` come first. Inputs that are wrong or nearly so are evaluated again one by
    one, those of least margin and at most 256 (8 if a wrong answer ended it); a counterexample is
    one that fails then.
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
        evaluate = InputEvaluator(chunked, model, device, count)

        def stage(name: str, action: Callable[..., object], *arguments: int) -> None:
            """Run one stage and record it, however it ends."""
            n_before, wrong, began = (
                evaluate.tally.n_evaluated,
                evaluate.tally.n_wrong,
                time.perf_counter(),
            )
            try:
                action(evaluate, n_bits, *arguments)
            finally:
                counts = {
                    "tried": evaluate.tally.n_evaluated - n_before,
                    "wrong": evaluate.tally.n_wrong - wrong,
                }
                stages.append({"name": name, **counts, "seconds": time.perf_counter() - began})

        try:
            if not (feasible and (count or n_inputs <= _BATCH)):
                if wrong_before:
                    stage("on record", lambda evaluate, _: evaluate(*tensors(wrong_before, device)))
                stage("structured", input_search.try_structured, budget // 8)
                stage("densities", input_search.try_densities, budget // 64, seed)
                stage("descent", input_search.descend, budget // 16)
                stage("two bits", input_search.try_structured, budget // 4, True)
                stage("descent", input_search.descend, budget // 16)
            if feasible:  # counts every input once, also those tried above
                evaluate = InputEvaluator(chunked, model, device, count or n_inputs <= _BATCH)
                stage("all inputs", _try_everything)
            else:
                stage("search", input_search.search, budget - evaluate.tally.n_evaluated, seed)
        except RefutedError:
            most = MOST_CONFIRMED
        tally = evaluate.tally
        cases = _evaluate_near(model, tally.least[:most], device)
    failing = [case for case in cases if not case.right]
    exhaustive = tally.n_evaluated == n_inputs and stages[-1]["name"] == "all inputs"
    verdict: Verdict = "right on all inputs" if exhaustive else "not refuted"
    if failing:
        verdict = "refuted"
    elif any(counts["wrong"] for counts in stages):  # in a batch, but not singly
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


def _evaluate_near(model: Model, least: list[Case], device: torch.device) -> list[Case]:
    """Inputs near a margin of 0 (the first few anyway), one by one; least margin first. If logits
    are large, rounding is too, so it is measured: how far the first few are from their batch."""
    few = evaluate_singly(model, least[:MOST_CONFIRMED], device)
    alone = {(case.bits, case.index): case.margin for case in few}
    pairs = [(case.margin, alone[case.bits, case.index]) for case in least[:MOST_CONFIRMED]]
    moved = max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)
    near = max(NEAR, _ROUNDING * moved)
    more = [case for case in least[MOST_CONFIRMED:] if margin_key(case) < near]
    return sorted([*few, *evaluate_singly(model, more, device)], key=margin_key)


def _try_everything(evaluate: InputEvaluator, n_bits: int) -> None:
    """Try every input: strings in binary order, each with every index."""
    shifts = torch.arange(n_bits - 1, -1, -1, device=evaluate.device)
    total = n_bits << n_bits
    for start in range(0, total, _BATCH):
        number = torch.arange(start, min(start + _BATCH, total), device=evaluate.device)
        string = torch.div(number, n_bits, rounding_mode="floor")
        index = number - string * n_bits + 1
        evaluate(((string[:, None] >> shifts) & 1).to(torch.uint8), index)


def params_of(run: RunSpec, weights: bytes) -> Params:
    """The parameters of a run from the bytes of its weights file."""
    names, params = check_tensors(run, weights), load(weights)
    return {name: params[name] for name in names}  # safetensors gives them in any order


def model_of(run: RunSpec, weights: bytes, device: torch.device, stacked: bool = False) -> Model:
    """The trained model of a run as a function of inputs, in float32; with `stacked`, always by
    the stacked models."""
    return _model_and_code(run, weights, device, stacked)[0]


def _model_and_code(
    run: RunSpec, weights: bytes, device: torch.device, stacked: bool = False
) -> tuple[Model, StepperName]:
    """The trained model of a run, and the code that evaluates it."""
    params = params_of(run, weights)
    one_seed = {name: value.unsqueeze(0).to(device) for name, value in params.items()}
    stack = with_buffers(one_seed, run.model, [run.seed])
    table = token_table(run.model.task, run.model.n_bits, device=device)
    code: StepperName
    logits: Logits
    logits, code = stacked_logits, "stacked"
    if not stacked:
        logits, code = evaluator_here(run.model, stack, device)

    def model(bits: Tensor, index: Tensor) -> Tensor:
        size = batch_that_fits(run.model, bits.shape[1], len(index))
        parts = map(Examples, bits[None].split(size, 1), index[None].split(size, 1))
        with explained(f"{run.model.family} fails") if run.model.code else nullcontext():
            return torch.cat([logits(stack, run.model, table, part)[0] for part in parts])

    return model, code


def verify_run(
    folder: Path,
    device: Device,
    budget: int = ALWAYS,
    seed: int = 0,
    count: bool = False,
    always: int | None = None,
) -> Verification:
    """Verify the run of a folder and store the record there; see `try_inputs`."""
    stored = read_stored_run(folder)
    before = stored.read_verification()
    record = try_inputs(stored, before, device, budget, seed, count, always)
    keep_verification(folder, record)
    return record.found


def try_inputs(
    stored: StoredRun,
    before: VerificationRecord | None,
    device: Device,
    budget: int,
    seed: int,
    count: bool,
    always: int | None = None,
) -> VerificationRecord:
    """Verify a stored run (see `verify_model`): the record, merged with that from before."""
    run, weights, where = stored.spec, stored.weights, device.torch
    check_length(run, budget)
    wrong_before: list[Case] = []
    if before is not None and before.found.verdict in WRONG:
        wrong_before = [before.found.counterexample or before.found.worst]
    model, code = _model_and_code(run, weights, where)
    n_bits = run.model.n_bits

    def verify_by(model: Model) -> Verification:
        return verify_model(model, n_bits, where, budget, seed, None, count, always, wrong_before)

    verification = verify_by(model)
    if code == "compiled":
        stacked = model_of(run, weights, where, stacked=True)
        if not input_search.agree(model, stacked, verification, seed):
            was, verification, code = verification, verify_by(stacked), "stacked"
            if was.verdict in WRONG and verification.verdict not in WRONG:
                verification = replace(verification, verdict="unsettled")
    environment = describe_environment(device, code)
    record = VerificationRecord(
        *(run.run_id, run.name, stored.weights_sha256, "float32", budget, seed),
        verification,
        environment,
        count,
    )
    return record if before is None else merge_records(before, record)


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
