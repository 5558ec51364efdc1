"""Shipped runs for the tests of proofs: their specs, weights, and margins by another program."""

import json
from pathlib import Path

import numpy as np
from tests.support.paths import WEIGHTS

from ithbit.spec import RunSpec, run_from_json
from ithbit.theory.solution import TrainedSolution
from ithbit.verification.proofs.certificate import weights_of

SHIPPED = WEIGHTS


def folders(pattern: str) -> list[Path]:
    """Folders of shipped runs, of mixed and then of uniform examples."""
    found = [f for kind in ("mixed", "uniform") for f in sorted(SHIPPED.glob(f"{kind}/{pattern}"))]
    assert found
    return found


def read(folder: Path) -> tuple[RunSpec, bytes]:
    run = run_from_json(json.loads((folder / "spec.json").read_text())["spec"])
    return run, (folder / "weights.safetensors").read_bytes()


def solution(run: RunSpec, weights: bytes) -> TrainedSolution:
    """The numpy twin of the trained models, which knows nothing of bounds."""
    return TrainedSolution(run.model, dict(weights_of(weights)), "")


def completions(bits: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Strings of a node: bit densities from 0 to 1, constant ones among them."""
    density = rng.random((count, 1)) * 1.4 - 0.2
    return np.where(bits < 0, rng.random((count, len(bits))) < density, bits).astype(np.int8)
