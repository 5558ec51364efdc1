"""A search on a real store: ordinary runs, taken on where it was left, and refuted where wrong."""

import csv
import itertools
import json
import runpy
import shutil
import tarfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.paths import RESULTS

import ithbit
from ithbit.capacity_search.card import capacity_figure, fit, render_card
from ithbit.capacity_search.result import Capacities, Capacity, atlas, read_rows, row
from ithbit.capacity_search.search import SearchSettings
from ithbit.capacity_search.search_rounds import Search, SearchState, rounds
from ithbit.capacity_search.state import state_limits
from ithbit.engine.device import choose_device
from ithbit.engine.options import TrainingOptions
from ithbit.errors import SpecError, StoreError
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.folder import RunFolder, keep_verification
from ithbit.store.records import Failure, Result
from ithbit.sweeps.runner import run_all
from ithbit.verification.run_verification import try_inputs
from ithbit.verification.stored_run import read_stored_run

MODEL = ModelSpec("rhi", "gru", 1, d_model=8)
ASK = SearchSettings(rates=(0.01, 0.03), seeds=(0, 1, 2), need=2, start=2, most_n=4)
SHORT = Protocol(
    batch_size=64, epoch_examples=1024, held_out_examples=64, max_epochs=10, examples="mixed"
)
CPU = choose_device("cpu")


def search(store: Path, most_rounds: int = 99) -> tuple[SearchState, list[RunSpec]]:
    """Where the search ends, and the runs that were trained."""
    trained: list[RunSpec] = []

    def train(runs: list[RunSpec]) -> None:
        trained.extend(runs)
        run_all(runs, store, TrainingOptions("cpu", workers=1, compile="off"))

    of = {MODEL: Search(ASK, store, SHORT)}
    seen = itertools.islice(rounds(of, train, CPU, float("inf")), most_rounds + 1)
    *_, (found,) = seen
    return found, trained


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("searched")


def test_a_search_goes_on_where_it_was_left_and_ends_with_a_bracket(store) -> None:
    left, first = search(store, most_rounds=1)
    assert left.train
    assert not left.done
    found, rest = search(store)
    assert found.done
    assert rest
    assert not set(first) & set(rest)  # nothing is trained twice
    low, high = found.bracket.low, found.bracket.high
    assert low is not None  # one bit is learnt in seconds
    assert high is None or low < high <= max(1.25 * low, low + 1)
    assert set(found.verdicts) == {"right on all inputs"}
    again, nothing = search(store)
    assert (again, nothing) == (found, [])


def test_a_run_that_is_refuted_does_not_count(store, tmp_path) -> None:
    """The lower end of a bracket falls when `verify` finds a wrong answer in too many runs."""
    found, _ = search(store)
    of = Search(ASK, store, SHORT)
    low = found.bracket.low
    at_low = of.runs(MODEL, low).values()
    right = [r for r in at_low if (d := RunFolder(store, r).result()) and d.solved]
    kept = {run: (store / run.folder / "verification.json") for run in right}
    before = {path: path.read_bytes() for path in kept.values() if path.exists()}
    try:
        for run in right:
            stored = read_stored_run(store / run.folder)
            record = try_inputs(stored, stored.read_verification(), CPU, 1, 0, count=False)
            wrong = replace(
                record.found, verdict="refuted", n_wrong=1, wrong_by_index={1: 1},
                counterexample=replace(record.found.worst, margin=-1.0),
                worst=replace(record.found.worst, margin=-1.0),
            )  # fmt: skip
            keep_verification(store / run.folder, replace(record, found=wrong))
        refuted = Search(ASK, store, SHORT).state(MODEL)
        assert refuted.train or refuted.bracket.low != low
    finally:
        for path in kept.values():
            path.unlink(missing_ok=True)
        for path, content in before.items():
            path.write_bytes(content)


def test_structured_inputs_count_until_a_run_is_verified(store, tmp_path) -> None:
    """Training ends with them; `verify` tries them too, and knows rounding from a wrong answer."""
    found, _ = search(store)
    low = found.bracket.low
    assert low is not None
    shutil.copytree(store, tmp_path / "copy")
    folders = [
        tmp_path / "copy" / run.folder
        for run in Search(ASK, store, SHORT).runs(MODEL, low).values()
    ]
    for path in folders:
        if (path / "result.json").exists():
            result = json.loads((path / "result.json").read_text())
            result |= {"structured_wrong": 1, "structured_example": "bits 0, index 1"}
            (path / "result.json").write_text(json.dumps(result))
    assert Search(ASK, tmp_path / "copy", SHORT).state(MODEL).bracket == found.bracket
    for path in folders:
        (path / "verification.json").unlink(missing_ok=True)
    refuted = Search(ASK, tmp_path / "copy", SHORT).state(MODEL)
    assert refuted.train or refuted.bracket.low != low


def test_records_travel_with_the_weights_that_may_have_to_be_verified(store, tmp_path) -> None:
    """Of a search that is not done, also those at the length being tried."""
    script = runpy.run_path(str(RESULTS.parent / "experiments" / "capacity.py"))
    found, _ = search(store)
    low = found.bracket.low
    assert low is not None
    asked = Search(ASK, store, SHORT)
    runs = tuple(asked.runs(MODEL, low).values())
    state = SearchState(MODEL, trying=low, train=runs)
    script["pack_weights"]({MODEL: asked}, [state], tmp_path / "weights.tar.gz")
    script["pack_records"](store, tmp_path / "records.tar.xz")
    packed = {}
    for name in ("weights.tar.gz", "records.tar.xz"):
        with tarfile.open(tmp_path / name) as tar:
            packed[name] = set(tar.getnames())
            tar.extractall(tmp_path / "restored", filter="data")
    ended = {run: RunFolder(store, run).outcome() for run in runs}
    solved = [
        run
        for run, done in ended.items()
        if isinstance(done, Result) and done.solved and not done.structured_wrong
    ]
    assert solved
    weights = {f"{run.folder}/weights.safetensors" for run in solved}
    assert packed["weights.tar.gz"] == weights
    assert packed["records.tar.xz"] == {
        f"{path.parent.name}/{path.name}"
        for path in store.glob("*/*.json")
        if path.name in ("spec.json", "result.json", "failure.json", "verification.json")
    }
    for name in packed["records.tar.xz"] | weights:
        assert (tmp_path / "restored" / name).read_bytes() == (store / name).read_bytes()
    assert Search(ASK, tmp_path / "restored", SHORT).state(MODEL) == asked.state(MODEL)


def test_a_store_that_is_none_and_damaged_runs_are_named(store, tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="is a file"):
        Search(ASK, file, SHORT).state(MODEL)
    run = Search(ASK, tmp_path, SHORT).runs(MODEL, 2)[0.03, 0]
    (tmp_path / run.folder).mkdir()
    (tmp_path / run.folder / "spec.json").write_text("{")
    (tmp_path / run.folder / "result.json").write_text("{")
    with pytest.raises(StoreError, match=r"spec\.json is not valid JSON"):
        Search(ASK, tmp_path, SHORT).state(MODEL)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"width": "4,x"}, "width must be numbers such as 4,8,16, got '4,x'"),
        ({"width": 4.7}, "width must be a whole number, got 4.7"),
        ({"layers": [1, True]}, "layers must be a whole number, got True"),
        ({"slurm": "partition=x"}, "--slurm and --slurm-profile need --on slurm"),
        ({"on": "slurm", "kernels": "off"}, "--kernels off needs --on local"),
        ({"width": "3,3"}, "give every width once"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"lr": ""}, "lr must be numbers"),
        ({"lr": -1.0, "most_n": 8}, "learning_rate must be positive"),
        ({"minutes": 0.0}, "minutes must be more than 0, got 0"),
        ({"on": "moon"}, "--on must be local or slurm, got 'moon'"),
        ({"seeds": 3}, "seeds must be numbers such as range(5) or [3], got 3"),
        ({"need": 9}, "need must be from 1 to the number of seeds, got 9"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(given, said, tmp_path) -> None:
    with pytest.raises(SpecError) as error:
        ithbit.capacity("rhi", "gru", store=tmp_path / "none", **given)
    assert said in str(error.value)
    assert not (tmp_path / "none").exists()


LAYER = """
from pathlib import Path
from torch import nn

class Shy(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)

    def forward(self, x):
        if x.shape[0] == 64 and x.shape[1] > 2 and Path(__file__).with_name("full").exists():
            raise MemoryError("no room for three tokens")
        return self.cell(x)[0]
"""


def test_a_run_that_cannot_be_run_is_no_evidence_and_is_tried_again(tmp_path) -> None:
    """Out of memory is not a failure to learn: the bracket stays open, with the reason."""
    (tmp_path / "layers.py").write_text(LAYER)
    (tmp_path / "full").touch()

    def ask() -> Capacities:
        return ithbit.capacity(
            "rhi", f"{tmp_path}/layers.py:Shy", width=4, lr=0.01, start=1, most_n=2, seeds="0-1",
            need=2, protocol=SHORT, store=tmp_path / "runs", workers=1,
        )  # fmt: skip

    stuck = ask()
    assert (stuck[0].tried, stuck[0].failed_at, stuck.final) == ("1+", None, False)
    assert "n = 2 cannot be settled: MemoryError: no room for three tokens" in stuck.stuck[0]
    assert "no room" in str(stuck)
    (tmp_path / "full").unlink()
    found = ask()
    assert (found.final, found.stuck) == (True, ())
    assert found[0].tried.startswith("1+ 2")


def test_a_cell_whose_weights_are_gone_is_stuck_and_the_others_go_on(store, tmp_path) -> None:
    found, _ = search(store)
    assert found.bracket.low is not None
    shutil.copytree(store, tmp_path / "copy")
    for run in Search(ASK, store, SHORT).runs(MODEL, found.bracket.low).values():
        for name in ("weights.safetensors", "verification.json"):
            (tmp_path / "copy" / run.folder / name).unlink(missing_ok=True)
    other = replace(MODEL, d_model=4)
    of = {model: Search(ASK, tmp_path / "copy", SHORT) for model in (MODEL, other)}
    (lost, next_one), *_ = rounds(of, lambda runs: None, CPU, until=0.0)
    assert lost.bracket == found.bracket
    assert not lost.done
    assert f"n = {found.bracket.low} cannot be settled" in lost.sentence()
    assert "has no weights.safetensors" in lost.sentence()
    assert next_one.train


def test_a_run_that_diverged_has_failed(tmp_path) -> None:
    of = Search(ASK, tmp_path, SHORT)
    for run in of.runs(MODEL, 2).values():
        folder = RunFolder(tmp_path, run)
        folder.create()
        folder.fail(Failure(run, "loss = nan", "", 1, "diverged"))
    assert of.state(MODEL).lengths == "2-"


def made_up(family: str, state: int, low: int, high: int | None) -> Capacity:
    blank = row(SearchState(ModelSpec("rhi", "gru", 1)))
    return replace(
        blank, family=family, state=state, state_origin="measured", solved_at=low, failed_at=high,
        final=True, rate=0.01, stand=4, seeds=5, float_limit=32 * state,
        code="0" * 12 if ":" in family else "",
    )  # fmt: skip


def test_rows_come_back_from_csv_and_what_is_none_is_refused(tmp_path) -> None:
    rows = (made_up("gru", 4, 8, 9), made_up("mamba2", 96, 128, None), row(SearchState(MODEL)))
    path = tmp_path / "rows.csv"
    path.write_text(Capacities(rows, "").csv())
    assert read_rows(path) == rows
    for text in ("a,b\n1,2\n", path.read_text().replace("gru", "gru,more", 1)[:-3] + "x\n"):
        path.write_text(text)
        with pytest.raises(StoreError, match="does not hold capacities"):
            read_rows(path)
    with pytest.raises(StoreError, match="cannot read"):
        read_rows(tmp_path / "missing.csv")


def test_an_exponent_has_an_interval_or_is_not_given() -> None:
    exact = [made_up("gru", 2**k, 4 * 2**k, 4 * 2**k + 1) for k in (3, 4, 5, 6)]
    found = fit("gru", exact)
    assert found is not None
    assert found.low <= 1.0 <= found.high + 0.02
    assert found.high - found.low < 0.1
    assert fit("gru", exact[:3]) is None
    assert fit("mamba2", exact) is None


def test_the_card_needs_no_network_and_escapes_what_it_is_given() -> None:
    own = made_up("<b>.py:Mine", 16, 11, 13)
    page = render_card(Capacities((own,), "Solved: <by> whom"))
    assert "Mine: how many bits?" in page
    assert "learns n = 11 (4 of 5 seeds tried), fails at n = 13" in page
    assert "<by>" not in page
    assert "Solved: &lt;by&gt; whom" in page
    assert 'src="http' not in page
    assert "<script" not in page


def test_the_card_says_how_many_seeds_were_run(tmp_path) -> None:
    """Two of two are asked for; after the first round one has run, and the card says one."""
    ask = SearchSettings(rates=(0.01,), seeds=(0, 1), need=2, start=1, most_n=2)
    searched = Search(ask, tmp_path, SHORT)

    def train(runs: list[RunSpec]) -> None:
        run_all(runs, tmp_path, TrainingOptions("cpu", workers=1, compile="off"))

    seen = rounds({MODEL: searched}, train, CPU, float("inf"))
    next(seen)
    found = row(next(seen)[0])
    assert (found.solved_at, found.stand, found.seeds, found.final) == (1, 1, 1, False)
    page = render_card(Capacities((found,), searched.sentence()))
    assert "so far n = 1 (1 of 1 seed tried)" in page
    assert "learns n = 1" not in page
    assert "the search is not done" in page
    # What was asked for is a condition, not a result.
    assert "A length counts as solved if 2 of 2 seeds succeed" in page
    assert "Solved: 2 of 2 seeds" not in page


def test_the_card_says_what_is_stuck_and_which_state_is_not_known() -> None:
    own = replace(made_up("a.py:Mine", 16, 8, None), state=None, final=False)
    page = render_card(Capacities((own,), "", ("n = 16 cannot be settled: out of memory",)))
    assert "n = 16 cannot be settled: out of memory" in page
    assert "width; state not fixed or not known" in page


def test_cells_without_a_state_have_a_panel_of_their_own() -> None:
    cells = [each for each in atlas() if each.task == "rhi" and each.solved_at]
    _, state_limits = capacity_figure(cells).axes
    without = [each for each in cells if not each.state]
    assert len(state_limits.get_xticks()) == len(without) > 0
    assert state_limits.get_xlabel() == "width; no fixed state"
    assert {each.width for each in without} == {
        int(label.get_text()) for label in state_limits.get_xticklabels()
    }
    marks = [
        line for line in state_limits.lines if len(line.get_xdata()) == 1 and line.get_zorder() > 2
    ]
    assert sorted(line.get_ydata()[0] for line in marks) == sorted(e.solved_at for e in without)
    assert len(capacity_figure([each for each in cells if each.state]).axes) == 1


@pytest.mark.parametrize("solved_at", [1, 2])
def test_the_marks_of_a_weak_layer_are_inside(solved_at) -> None:
    own = made_up("a.py:Mine", 4, solved_at, 2 * solved_at)
    axes = capacity_figure(atlas(), [own]).axes[0]
    assert axes.get_ylim()[0] < solved_at
    assert capacity_figure(atlas()).axes[0].get_ylim()[0] == 2


def test_the_shipped_atlas_is_that_of_the_results() -> None:
    assert read_rows(RESULTS / "capacity/atlas.csv") == atlas()


def test_the_atlas_agrees_with_the_main_table_where_both_speak() -> None:
    """A length that all of twenty seeds solve is solved there too, one that none solves failed."""
    cells: dict[tuple[str, str, int, int], list[bool]] = defaultdict(list)
    with (RESULTS / "paper/runs.csv").open() as rows:
        for run in csv.DictReader(rows):
            if run["positions"] == "polynomial":
                cell = run["task"], run["family"], int(run["n_layers"]), int(run["n_bits"])
                cells[cell].append(run["solved"] == "true")
    compared = 0
    for each in atlas():
        for (*cell, n), solved in cells.items() if each.width == 16 else ():
            if cell == [each.task, each.family, each.layers] and len(set(solved)) == 1:
                compared += 1
                assert n <= (each.solved_at or 0) if solved[0] else n >= (each.failed_at or n + 1)
    assert compared >= 25


def test_measured_and_counted_states_agree() -> None:
    model = ModelSpec("rhi", "gru", 1, n_layers=2, d_model=4)
    measured, counted = state_limits(model), state_limits(model, measure=False)
    assert (measured.state_origin, counted.state_origin) == ("measured", "counted")
    assert measured.state == counted.state == 8
    assert measured.float_limit == 256
    assert state_limits(ModelSpec("rhi", "softmax-full", 1, d_model=4), measure=False).state is None
    for each in atlas():  # measured where it was made
        model = ModelSpec("rhi", each.family, 1, n_layers=each.layers, d_model=each.width)  # type: ignore[arg-type]
        assert each.state == state_limits(model, measure=False).state, each
    lhi = state_limits(ModelSpec("lhi", "mamba2", 1, d_model=4), measure=False)
    assert (lhi.float_limit, lhi.n_star) == (None, 65)
