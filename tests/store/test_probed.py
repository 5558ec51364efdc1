"""Probed layers on the report page."""

import json
from pathlib import Path

import pytest
from tests.support.synthetic_store import HOSTILE, Plan, write_run

from ithbit.reporting.page.page import render_page
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.frame import load_rows
from ithbit.store.probed import probed_layers

REPORT = {
    "schema": 1,
    "layer": "Mine",
    "width": 16,
    "behaviour": {"leak": {"token": 2, "later": 5}},
    "causal_rank": {"sentence": "flat at 3"},
    "runs": [
        {
            "layer": "Mine",
            "cell": {"task": "lhi", "n_bits": 8, "n_layers": 1, "width": 16},
            "seed": 0,
            "epochs": 9,
            "stopped_by": "epochs",
            "max_accuracy": accuracy,
            "first_solved_epoch": first,
            "n_parameters": 100,
            "seconds": 1.0,
            "verdict": None,
        }
        for accuracy, first in ((1.0, 5), (0.9, None))
    ],
}


def write(store: Path, name: str, text: str) -> None:
    folder = store / "probe" / name
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(text)


def test_a_line_a_layer_and_damage_is_passed_over(tmp_path: Path) -> None:
    assert probed_layers(tmp_path) == []
    write(tmp_path, "mine-0", json.dumps(REPORT))
    write(tmp_path, "torn-0", '{"layer": ')
    write(tmp_path, "half-0", '{"schema": 1, "layer": "half"}')
    impossible = [REPORT["runs"][0] | {"max_accuracy": 7}]
    write(tmp_path, "seven-0", json.dumps(REPORT | {"runs": impossible}))
    write(tmp_path, "later-0", json.dumps(REPORT | {"schema": 2}))
    write(tmp_path, "list-0", json.dumps(REPORT | {"causal_rank": [], "runs": []}))
    rank = {"sentence": "x", "ranks": [1e999]}
    write(
        tmp_path, "rank-0", json.dumps(REPORT | {"causal_rank": rank}).replace("Infinity", "1e999")
    )
    odd = [REPORT["runs"][0] | {"cell": "lhi"}]
    write(tmp_path, "cell-0", json.dumps(REPORT | {"runs": odd, "protocol": "x"}))
    (found,) = probed_layers(tmp_path)
    assert (found.name, found.causal) == ("Mine", "no: output 2 sees token 5")
    assert found.solved == "LHI n=8 L=1: 1/2"


def test_runs_that_did_not_end_are_no_failures_to_learn(tmp_path: Path) -> None:
    solved, missed = REPORT["runs"]
    ends = ("failed", "time", "not finite")
    runs = [solved, *(missed | {"stopped_by": end} for end in ends)]
    runs.append(runs[1] | {"cell": missed["cell"] | {"n_bits": 9}})
    write(tmp_path, "mine-0", json.dumps(REPORT | {"runs": runs}))
    (found,) = probed_layers(tmp_path)
    first = "LHI n=8 L=1: 1/2 (1 unfinished)"
    assert found.solved == f"{first}, LHI n=9 L=1: none could be run"


@pytest.mark.usefixtures("without_figures")
def test_the_page_has_a_section_where_there_is_one(tmp_path: Path) -> None:
    write_run(tmp_path, Plan(RunSpec(ModelSpec("lhi", "gru", 8), 0), True, 1.0, 9))
    assert "Probed layers" not in render_page(load_rows(tmp_path))
    write(tmp_path, "mine-0", json.dumps(REPORT | {"layer": HOSTILE}))
    page = render_page(load_rows(tmp_path))
    assert "Probed layers" in page
    assert HOSTILE not in page
