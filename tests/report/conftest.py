"""Made-up stores, each written once."""

import dataclasses
import json
from pathlib import Path

import pytest
from synthetic_store import HOSTILE, Plan, paper_plans, positions_plans, write_run, write_store

from ithbit.report.cells import Cells, gather
from ithbit.report.rows import Records, load_rows


@pytest.fixture(scope="session")
def paper_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 726 runs of the paper, successes as published, without histories."""
    plans = paper_plans() + positions_plans()
    return write_store(tmp_path_factory.mktemp("paper"), plans, with_history=False)


@pytest.fixture(scope="session")
def paper_records(paper_store: Path) -> Records:
    return load_rows(paper_store)


@pytest.fixture(scope="session")
def paper_cells(paper_records: Records) -> Cells:
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
    (failed / "failure.json").write_text(json.dumps(record | {"error": HOSTILE, "name": HOSTILE}))
    write_run(store, plans[-2], "spec")
    damaged = write_run(store, plans[-3])
    (damaged / "result.json").write_text('{"schema": 1, "run_id"')
    later = write_run(store, plans[-4])
    record = json.loads((later / "result.json").read_text())
    (later / "result.json").write_text(json.dumps(record | {"schema": 2}))
    (store / "half_copied-0123456789ab").mkdir()
    return store


@pytest.fixture(scope="session")
def mixed_records(mixed_store: Path) -> Records:
    return load_rows(mixed_store)


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
