"""All inputs of a trained model where that is feasible, a search for a wrong one elsewhere.

The record is `verification.json` in the run folder. What it says is *observed*: float evaluation of
the stored weights on the device and in the dtype that it names, input by input. It is no
certificate of the real-valued function, and another device may round a margin near 0 to the other
side. The weights are those at the end of training, while the paper's criterion looks at the best
epoch.
"""

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ithbit.engine import reading
from ithbit.engine.device import Device, describe_environment
from ithbit.engine.folder import write_atomically
from ithbit.engine.spec import RunSpec, run_from_json
from ithbit.errors import SpecError, StoreError
from ithbit.models.classifier import init, logits
from ithbit.probe.margins import NEAR, Case, Model, Tally, alone, in_chunks, margins
from ithbit.probe.search import search
from ithbit.sweep.local import usable_cores
from ithbit.sweep.store import folder_status, need_runs
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table

Verdict = Literal[
    "verified on all inputs", "counterexample", "no counterexample found", "unsettled"
]
VERIFICATION_SCHEMA = 1
FILE = "verification.json"
ALWAYS = 1 << 20  # n = 16 has so many inputs: everything up to there is tried without exception
_BATCH = 1 << 17


@dataclass(frozen=True)
class Verification:
    """What came of trying the inputs of one model. `n_wrong` counts all that were evaluated.

    *unsettled*: inputs were answered wrong in a batch and right alone, so their margins are within
    rounding of 0; neither verified nor a counterexample.
    """

    verdict: Verdict
    exhaustive: bool
    n_bits: int
    n_inputs: int  # n 2^n: all there are
    n_evaluated: int
    n_wrong: int
    n_near: int  # margins within 1e-4 of 0
    wrong_by_index: dict[int, int]
    worst: Case  # least margin, evaluated alone
    counterexample: Case | None
    seconds: float

    @property
    def accuracy(self) -> float | None:
        """Share of right answers over all inputs; None where not all were tried."""
        return 1 - self.n_wrong / self.n_inputs if self.exhaustive else None

    def sentence(self) -> str:
        """The verdict in words."""
        margin = "not finite" if self.worst.margin is None else f"{self.worst.margin:.4g}"
        least = f"least margin {margin}"
        match self.verdict:
            case "verified on all inputs":
                return f"observed right on all {self.n_inputs:,} inputs, {least}"
            case "counterexample":
                assert self.counterexample is not None
                at = f"bits {self.counterexample.bits}, index {self.counterexample.index}"
                share = (
                    f"{self.n_wrong:,} of all {self.n_inputs:,} inputs"
                    if self.exhaustive
                    else f"{self.n_wrong:,} of {self.n_evaluated:,} tries"
                )
                return f"wrong on {share}, worst at {at}, {least}"
            case "no counterexample found":
                return f"no counterexample in {self.n_evaluated:,} tries, {least}"
        return f"{self.n_wrong:,} inputs wrong in a batch and right alone, {least}"

    def to_json(self) -> dict[str, Any]:
        found = self.counterexample
        return asdict(self) | {
            "accuracy": self.accuracy,
            "wrong_by_index": {str(i): count for i, count in self.wrong_by_index.items()},
            "worst": self.worst.to_json(),
            "counterexample": None if found is None else found.to_json(),
        }


def examine(
    model: Model,
    n_bits: int,
    device: torch.device,
    budget: int = ALWAYS,
    seed: int = 0,
    workers: int | None = None,
) -> Verification:
    """Try every input if they number at most `budget` (2^20 without exception), else search.

    What is wrong or nearly so is evaluated again by itself, 256 inputs at most, those of least
    margin; a counterexample is one that fails then.
    """
    if budget < 1:
        raise SpecError(f"the budget is a number of inputs from 1, got {budget}")
    started = time.perf_counter()
    n_inputs = n_bits << n_bits
    exhaustive = n_inputs <= max(budget, ALWAYS)
    with in_chunks(model, device, workers or usable_cores()) as chunked:
        if exhaustive:
            tally = _everything(chunked, n_bits, device)
        else:
            tally = search(chunked, n_bits, budget, device, seed)
        near = [case for case in tally.least if case.margin is None or case.margin < NEAR]
        cases = alone(model, near or tally.least[:1], device)
    failing = [case for case in cases if not case.right]
    verdict: Verdict = "verified on all inputs" if exhaustive else "no counterexample found"
    if failing:
        verdict = "counterexample"
    elif tally.n_wrong:
        verdict = "unsettled"
    return Verification(
        verdict,
        exhaustive,
        n_bits,
        n_inputs,
        tally.n_evaluated,
        max(tally.n_wrong, len(failing)),
        tally.n_near,
        tally.wrong_by_index or _by_index(failing),
        cases[0],
        failing[0] if failing else None,
        time.perf_counter() - started,
    )


def _by_index(cases: list[Case]) -> dict[int, int]:
    return {i: sum(case.index == i for case in cases) for i in sorted({c.index for c in cases})}


def _everything(model: Model, n_bits: int, device: torch.device) -> Tally:
    """All n 2^n inputs, strings in binary order with every index each, made on the device."""
    tally = Tally()
    shifts = torch.arange(n_bits - 1, -1, -1, device=device)
    total = n_bits << n_bits
    for start in range(0, total, _BATCH):
        number = torch.arange(start, min(start + _BATCH, total), device=device)
        string = torch.div(number, n_bits, rounding_mode="floor")
        index = number - string * n_bits + 1
        bits = ((string[:, None] >> shifts) & 1).to(torch.uint8)
        tally.add(bits, index, margins(model(bits, index), bits, index))
    assert tally.n_evaluated == total
    return tally


def read_run(folder: Path) -> tuple[RunSpec, bytes]:
    """The spec of a finished run folder and its weights as they lie on the disk."""
    record = read_result(folder)
    try:
        run = run_from_json(record["spec"])
    except (KeyError, TypeError, ValueError) as error:  # not a spec of this version
        raise StoreError(f"{folder} holds no readable run: {error}; restore the folder") from error
    try:
        weights = (folder / "weights.safetensors").read_bytes()
    except OSError as error:
        raise StoreError(
            f"{folder} has no weights.safetensors that can be read ({error.strerror}): only a "
            "finished run can be verified; finish it first"
        ) from error
    return run, weights


def read_result(folder: Path) -> dict[str, Any]:
    """The whole result of a run folder; raises `StoreError` with the reason if it has none."""
    try:
        state, record = reading.read_run(str(folder))
    except reading.UnreadableError as reason:
        raise StoreError(f"{folder} holds no readable run: {reason}") from None
    if state != "finished":
        raise StoreError(
            f"{folder} has no result.json: only a finished run can be verified; finish it first"
        )
    return record


def model_of(run: RunSpec, weights: bytes, device: torch.device) -> Model:
    """The trained model of a run as a function of inputs, in float32."""
    try:
        params = load(weights)
    except SafetensorError as error:
        raise StoreError(f"the weights of {run.name} are damaged: {error}") from error
    shapes = {name: value.shape for name, value in init(run.model, run.seed).items()}
    if {name: value.shape for name, value in params.items()} != shapes:
        raise StoreError(f"the weights of {run.name} do not fit its model; restore the folder")
    stacked = {name: value.unsqueeze(0).to(device) for name, value in params.items()}
    table = token_table(run.model.task, run.model.n_bits, device=device)

    def model(bits: Tensor, index: Tensor) -> Tensor:
        examples = Examples(bits.unsqueeze(0), index.unsqueeze(0))
        return logits(stacked, run.model, table, examples)[0]

    return model


def verify_run(folder: Path, device: Device, budget: int = ALWAYS, seed: int = 0) -> Verification:
    """Verify the run of a folder and leave the record there, in place of an older one."""
    run, weights = read_run(folder)
    model = model_of(run, weights, device.torch)
    found = examine(model, run.model.n_bits, device.torch, budget, seed)
    record = {
        "schema": VERIFICATION_SCHEMA,
        "run_id": run.run_id,
        "name": run.name,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "dtype": "float32",
        "budget": budget,
        "seed": seed,
        **found.to_json(),
        "environment": describe_environment(device),
    }
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    try:
        write_atomically(folder / FILE, text.encode())
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror or error}") from error
    return found


def recorded(folder: Path) -> dict[str, Any] | None:
    """The verification that a run folder has, None if it has none that can be read here."""
    try:
        record = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("schema") != VERIFICATION_SCHEMA:
        return None
    return record if folder.name.endswith(f"-{record.get('run_id')}") else None


def finished_folders(store: Path) -> list[Path]:
    """The folders of finished runs, and those that are set aside; an error if there are none."""
    folders = [store / name for _, name in need_runs(store)]
    found = [folder for folder in folders if folder_status(folder) in ("done", "set aside")]
    if not found:
        raise StoreError(f"no run of the store {store} has finished; `ithbit status` lists them")
    return found
