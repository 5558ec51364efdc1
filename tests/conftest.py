"""The table of models that the properties run over, made-up stores, and the gates to libraries."""

import dataclasses
import gc
import importlib.util
import json
import os
import signal
import tempfile
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.synthetic_store import (
    HOSTILE,
    Plan,
    paper_plans,
    positions_plans,
    write_run,
    write_store,
)

if not torch.cuda.is_available():  # kernels run under Triton's interpreter, if asked before import
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.pop("ITHBIT_STORE", None)  # the user's store is none of the tests'
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start; see `one_thread`
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)  # interruptions are tested

from ithbit.families import FAMILIES, TASKS, family_named
from ithbit.models import classifier
from ithbit.models.recorded_layer import holds_a_run
from ithbit.models.stacked import Params
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.folder import RunFolder

# A run folder that someone left in the temporary folder makes all below it a store, and layers in a
# store are never loaded.
if any(map(holds_a_run, Path(tempfile.gettempdir(), "file").parents)):
    tempfile.tempdir = os.environ["TMPDIR"] = "/var/tmp"

if TYPE_CHECKING:  # polars: tests on a GPU do without it
    from ithbit.reporting.cells import Cells
    from ithbit.store.frame import Records


def _cases() -> list[ModelSpec]:
    """Both tasks, six families, several depths, every encoding, lengths from 1, odd sizes."""
    paper = [
        ModelSpec(task, family, n_bits=n, n_layers=layers)
        for (task, family), (n, layers) in product(
            product(TASKS, FAMILIES), ((5, 1), (6, 2), (1, 3))
        )
    ]
    sizes = [
        ModelSpec(task, family, n_bits=7, n_layers=2, d_model=12, n_heads=3, d_ff=20, d_state=5)
        for task, family in product(TASKS, FAMILIES)
    ]
    long = [ModelSpec("rhi", family, n_bits=65, n_layers=2) for family in FAMILIES]
    encodings = [
        ModelSpec("lhi", family, n_bits=4, n_layers=2, positions=positions)
        for family, positions in product(FAMILIES, ("none", "learned", "sinusoidal", "rotary"))
        if family_named(family).takes(positions)
    ]
    return paper + sizes + long + encodings


def _label(spec: ModelSpec) -> str:
    size = f"n{spec.n_bits}-L{spec.n_layers}-d{spec.d_model}"
    return f"{spec.task}-{spec.family}-{size}-{spec.positions}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests out that start a Slurm, unless the mark is named."""
    if "slurm" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("slurm")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """What is there by now stays: no search for garbage goes over it again, an eighth of the time
    of all tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The models are small: more threads only wait for each other, and may sum in other orders."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> None:
    """Kernels are interpreted where there is no GPU, and quickly."""
    if importlib.util.find_spec("triton") and not torch.cuda.is_available():
        from tests.support.quick_interpreter import quicken

        quicken()


@pytest.fixture(params=_cases(), ids=_label)
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    """Every model of the table in turn."""
    return request.param


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """Every family in turn."""
    return request.param


@pytest.fixture
def library() -> None:
    """Skips a test where the libraries of the reference are not installed."""
    pytest.importorskip(
        "transformers", reason="the reference needs transformers (ithbit[reference])"
    )


@pytest.fixture
def triton() -> None:
    """Skips a test of the kernels where there is no Triton."""
    pytest.importorskip("triton", reason="the kernels need triton")


@pytest.fixture
def cuda() -> None:
    """Skips a test where there is no GPU."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture
def moved():
    """Parameters of one seed away from initialisation, where no bias is 0 and no gain is 1."""

    def draw(spec: ModelSpec, seed: int = 0, dtype: torch.dtype = torch.float64) -> Params:
        generator = torch.Generator().manual_seed(1000 + seed)
        return {
            name: (
                value * torch.empty_like(value).uniform_(0.5, 2.0, generator=generator)
                + 0.2 * torch.empty_like(value).normal_(generator=generator)
            ).to(dtype)
            for name, value in classifier.init(spec, seed).items()
        }

    return draw


@pytest.fixture
def kept():
    """What a finished run leaves that must not depend on where, when and with whom it trained."""

    def of(store: Path, run: RunSpec) -> dict[str, object]:
        folder = RunFolder(store, run)
        result = folder.result()
        assert result is not None, f"{run.name} has no result in {store}"
        times = ("seconds_per_epoch", "evaluation_seconds", "started_at", "finished_at")
        history = [asdict(epoch) | {"seconds": None} for epoch in folder.history()]
        assert len(history) == result.epochs
        return {
            "weights": (folder.path / "weights.safetensors").read_bytes(),
            "history": history,
            "result": {k: v for k, v in result.to_json().items() if k not in times},
        }

    return of


@pytest.fixture
def leftovers():
    """Files of a store that are none of a run's: temporary ones, set aside ones."""
    known = {"spec.json", "history.jsonl", "state.safetensors", "weights.safetensors"}
    known |= {"result.json", "failure.json", "lock"}

    def of(store: Path) -> list[str]:
        names = [path.name for path in store.rglob("*") if path.is_file()]
        return sorted(name for name in names if name not in known)

    return of


@pytest.fixture(scope="session")
def paper_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 726 runs of the paper, successes as published, without histories."""
    plans = paper_plans() + positions_plans()
    return write_store(tmp_path_factory.mktemp("paper"), plans, with_history=False)


@pytest.fixture(scope="session")
def paper_records(paper_store: Path) -> "Records":
    from ithbit.store.frame import load_rows

    return load_rows(paper_store)


@pytest.fixture(scope="session")
def paper_cells(paper_records: "Records") -> "Cells":
    from ithbit.reporting.cells import gather

    return gather(paper_records)


def some_plans() -> list[Plan]:
    """Two constructive variants and a stress test at n = 8 and 64."""
    return [
        plan
        for plan in paper_plans()
        if plan.run.model.n_bits in (8, 64)
        and (plan.run.model.family, plan.run.model.n_layers) in (("gru", 1), ("linear-full", 2))
    ]


@pytest.fixture(scope="session")
def mixed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished runs with histories, a failed one with a hostile message, an unfinished one, a half
    copied one, a damaged one and one of a later version."""
    store = tmp_path_factory.mktemp("mixed")
    plans = some_plans()
    write_store(store, plans[:-5])
    failed = write_run(store, plans[-1], "failure")
    record = json.loads((failed / "failure.json").read_text())
    (failed / "failure.json").write_text(json.dumps(record | {"error": HOSTILE}))
    write_run(store, plans[-2], "spec")
    damaged = write_run(store, plans[-3])
    (damaged / "result.json").write_text('{"schema": 1, "run_id"')
    later = write_run(store, plans[-4])
    record = json.loads((later / "result.json").read_text())
    (later / "result.json").write_text(json.dumps(record | {"schema": 2}))
    (store / "half_copied-0123456789ab").mkdir()
    return store


@pytest.fixture(scope="session")
def mixed_records(mixed_store: Path) -> "Records":
    from ithbit.store.frame import load_rows

    return load_rows(mixed_store)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without their figures, which take nearly all of a page's time."""
    from ithbit.reporting.page import sections

    monkeypatch.setattr(sections, "FIGURES", {})


@pytest.fixture
def short_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that check the contract of a layer for as long as the corpus of layers is checked,
    which takes most of the time of a small probe; for tests of what is reported."""
    monkeypatch.setattr("ithbit.contract.layer_facts.CHECK_SECONDS", 0.35)


@pytest.fixture
def differing_store(tmp_path: Path) -> Path:
    """The paper's runs, but no causal linear model of two layers solves LHI, and none has the
    published size."""

    def spoiled(plan: Plan) -> Plan:
        m = plan.run.model
        if (m.task, m.family, m.n_layers) != ("lhi", "linear-causal", 2):
            return plan
        return dataclasses.replace(plan, solved=False, accuracy=0.6, epochs=500, n_parameters=6000)

    return write_store(tmp_path / "differing", map(spoiled, paper_plans()), with_history=False)
