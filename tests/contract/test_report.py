"""The report as a whole: sentences, JSON, page, and the families beside the layer."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.support.paths import BAD_LAYERS, TOY_LAYERS
from tests.support.synthetic_store import Plan as StoredPlan
from tests.support.synthetic_store import write_run

import ithbit
from ithbit.contract.probe import family_rows
from ithbit.contract.report import Count, ProbePlan, ProbeReport, report_text
from ithbit.errors import LayerError, SpecError
from ithbit.families import TASKS
from ithbit.reporting.page.probe import render_probe
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.probed import ProbedCell, probed_layers
from ithbit.store.status import folder_status
from ithbit.theory.bounds.state import state_bounds

pytestmark = pytest.mark.usefixtures("short_check")
SHORT = Protocol(epoch_examples=512, held_out_examples=100, max_epochs=1)


@cache
def look(name: str) -> ProbeReport:
    """Without training; a report does not change, so several tests read one."""
    return ithbit.probe(f"{BAD_LAYERS}:{name}", width=4, rank_n=8, train=False, device="cpu")


def page_of(report: ProbeReport) -> str:
    return render_probe(report)


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_state_of_three_is_told() -> None:
    text = flat(report_text(look("StateOfThree")))
    assert "flat at 3 from k = 2 on" in text
    assert "StateOfThree declares a state of 3 numbers, as measured" in text
    assert "a declared state of 3 float32 numbers cannot solve RHI past n = 96; vacuous" in text


def test_an_understated_state_is_told() -> None:
    text = flat(report_text(look("UnderstatesItsState")))
    assert "declares a state of 2 numbers, but 3 directions of the past get through" in text
    assert "a measured state of 3" in text


def test_a_measured_size_is_not_called_proved() -> None:
    declared, measured = (report_text(look(n)) for n in ("StateOfThree", "UnderstatesItsState"))
    assert "declared state? (proved for a state of that size)" in declared
    assert "proved for a state of that size" not in measured
    assert "(conditional: its size is measured)" in measured


def test_a_layer_for_one_length_is_told() -> None:
    with pytest.raises(
        LayerError, match=r"^TakesTenTokens raises on an input of shape \(1, 9, 4\)"
    ):
        look("TakesTenTokens")


def test_a_layer_that_keeps_a_tensor_is_probed() -> None:
    assert "nothing is forgotten so far" in flat(report_text(look("KeepsItsAttention")))


def test_parts_that_rest_in_evaluation_are_told() -> None:
    assert "its dropout is off and its BatchNorm" in flat(report_text(look("RestsInEvaluation")))


def test_equal_ranks_are_drawn_together() -> None:
    text = flat(report_text(look("StateOfThree")))
    assert "float64: 0 at k = 1, 3 from k = 2 to 8 (all measured)" in text
    assert "one later output sees 3 numbers of the past" in text


def test_the_singular_values_are_told_and_drawn() -> None:
    report = look("StateOfThree")
    values = report.to_json()["causal_rank"]["singular_values"]
    assert values[2] > 1e6 > 1 > values[3]
    page = page_of(report)
    assert "Singular values at k = 8" in page


def test_a_leaky_layer_has_no_bound() -> None:
    report = look("Leaky")
    assert report.bounds == ()
    assert report.fingerprint is None
    assert "Leaky is not causal: " in report_text(report)
    assert "Nothing: the layer is not causal" in report_text(report)


@pytest.mark.parametrize("name", ["Rounds", "Detaches", "RoundsAPart", "DeclaresWhatItRounds"])
def test_nothing_follows_where_the_derivative_does_not_tell(name: str) -> None:
    report = look(name)
    data = json.loads(json.dumps(report.to_json()))
    assert (data["causal_rank"]["state"], data["bounds"]) == (None, [])
    assert data["causal_rank"]["fault"] in data["causal_rank"]["sentence"]
    page = page_of(report)
    assert "<svg" not in page
    for text in (flat(report_text(report)), flat(page), json.dumps(data)):
        assert "no measure of this layer" in text
        assert "nothing follows from it" in text
        for untrue in ("nothing of the past is kept", "impossible", "cannot solve", "as measured"):
            assert untrue not in text
    assert "Nothing: the rank is no measure of this layer" in report_text(report)


def test_a_declared_state_that_was_not_measured_is_told() -> None:
    (remark,) = look("DeclaresWhatItRounds").remarks
    assert remark == "DeclaresWhatItRounds declares a state of 4 numbers, which was not measured"


def test_a_blind_layer_is_not_trained(tmp_path: Path) -> None:
    report = ithbit.probe(f"{BAD_LAYERS}:Blind", width=4, rank_n=4, store=tmp_path, device="cpu")
    assert report.runs == ()
    assert "not trained: a layer that ignores its input can only guess" in report.remarks


def test_bounds_speak_where_they_can() -> None:
    (bound,) = state_bounds(1, None, causal=True, layers=[1])
    assert bound.n_star == 32
    assert "RHI is impossible at n = 64" in bound.sentence(64)
    assert state_bounds(None, 5, causal=True, layers=[1]) == []
    assert state_bounds(3, 3, causal=False, layers=[1]) == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ProbeReport:
    store = tmp_path_factory.mktemp("store")
    run = RunSpec(ModelSpec("lhi", "gru", n_bits=3, d_model=4), 0, SHORT)
    write_run(store, StoredPlan(run, True, 1.0, 1))
    return ithbit.probe(
        lambda width: torch.nn.GELU(),
        name="<b>mine",
        width=4,
        n=3,
        layers=[1],
        seeds=[0, 1],
        rank_n=4,
        protocol=SHORT,
        store=store,
        device="cpu",
    )


def test_training_stands_beside_the_families(trained: ProbeReport) -> None:
    assert [run.seed for run in trained.runs] == [0, 1, 0, 1]
    text = report_text(trained)
    assert "> <b>mine" in text
    assert "At most 1 epoch (the paper has 500); not the paper's: epoch_examples = 512" in flat(
        text
    )
    lines = [line for line in text.splitlines() if line.strip().startswith("GRU")]
    assert [line.split()[-1] for line in lines] == ["–", "1/1"]
    data = json.loads(json.dumps(trained.to_json()))
    assert data["causal_rank"]["ranks"] == [0, 0, 0, 0]
    assert len(data["runs"]) == 4


@pytest.mark.parametrize("layers", [[1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize("name", ["rnn", "transformer-encoder-layer-causal"])
def test_a_terminal_of_eighty_columns_holds_every_line(
    trained: ProbeReport, tmp_path: Path, name: str, layers: list[int]
) -> None:
    lengths = [8, 16, 32, 64]
    plan = ProbePlan(lengths=tuple(lengths), layers=tuple(layers))
    cells = [(task, n, depth) for task in TASKS for n in lengths for depth in layers]
    first = replace(trained.runs[0], max_accuracy=0.75)
    many = replace(
        trained,
        layer=name,
        plan=plan,
        rank=replace(trained.rank, ranks=tuple(range(0, 800, 16))),
        runs=tuple(replace(first, cell=ProbedCell(*cell, width=16)) for cell in cells),
        families=tuple(family_rows(tmp_path, plan)),
    )
    lines = report_text(many).splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.split()[1:] for line in lines if line.startswith(("  RHI ", "  LHI "))]
    wanted = [part for n in lengths for depth in layers for part in (f"n={n}", f"L={depth}")]
    assert [part for head in heads for part in head] == wanted * 2  # every cell once for each task
    if len(layers) == 2:  # the depths of a length stand in one block
        assert all(head[0] == head[2] for head in heads)
    ours = [line.split()[2:] for line in lines if line.startswith("> ")]
    assert sum(map(len, ours)) == len(cells)
    grus = [line.split()[1:] for line in lines if line.startswith("  GRU ")]
    assert [count for row in grus for count in row][:2] == ["5/5p", "5/5p"]  # n = 8, L = 1 and 2


def test_the_page_escapes_names_and_holds_the_grid(trained: ProbeReport) -> None:
    page = page_of(trained)
    assert "<b>mine" not in page
    assert "&lt;b&gt;mine" in page
    assert "<script" not in page
    assert page.count('class="user"') == 2  # a row a task
    assert "<svg" in page


def test_the_page_of_a_layer_that_was_not_trained() -> None:
    page = page_of(look("StateOfThree"))
    assert "flat at 3 from k = 2 on" in page
    assert "<svg" in page
    assert "<table" not in page


def test_families_come_from_the_store_or_as_published(tmp_path: Path) -> None:
    for seed in range(3):
        run = RunSpec(ModelSpec("rhi", "gru", 8), seed, Protocol(stop_when_solved=True))
        write_run(tmp_path, StoredPlan(run, seed > 0, 1.0 if seed else 0.9, 20))
    rows = {
        (row.task, row.family, row.n_layers): row.counts
        for row in family_rows(tmp_path, ProbePlan(16, (8, 9)))
    }
    assert rows["rhi", "gru", 1] == {8: Count(2, 3, "ours"), 9: None}
    assert rows["lhi", "softmax-full", 1][8] == Count(0, 5, "published")
    assert rows["lhi", "gru", 2][8] is None  # not in the paper
    missing = family_rows(tmp_path / "none", ProbePlan(8))
    assert all(row.counts == {8: None} for row in missing)


def test_plans_are_checked() -> None:
    with pytest.raises(SpecError, match=r"n must be numbers from 1, got \[0\]"):
        ProbePlan(lengths=(0,))
    with pytest.raises(SpecError, match="give every seed once"):
        ProbePlan(seeds=(1, 1))
    with pytest.raises(SpecError, match="the width must be at least 1"):
        ProbePlan(width=0)


def test_a_layer_for_one_length_alone() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[1] > 8:
                raise ValueError("at most 8 tokens")
            return x.cumsum(1)

    report = ithbit.probe(lambda width: Fixed(), width=2, n=6, rank_n=32, train=False, device="cpu")
    assert "the layer refuses 63 tokens" in report.remarks[0]
    assert report.rank.ranks[:3] == (0, 2, 2)


def test_a_layer_without_a_gradient() -> None:
    class Detached(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return x.cumsum(1)

    report = ithbit.probe(lambda width: Detached(), width=2, rank_n=4, train=False, device="cpu")
    assert all(set(found) == {None} for _, found in report.counts("rhi"))  # nothing was trained
    assert "although the derivative is 0" in report.rank.sentence()
    with pytest.raises(LayerError, match="raises on an input of shape"):
        ithbit.probe(lambda width: torch.nn.Linear(3, 3), width=2, train=False, device="cpu")


WHERE = {"width": 4, "layers": [1], "rank_n": 4, "device": "cpu", "workers": 1}


def test_runs_are_ordinary_ones_of_the_store(tmp_path: Path) -> None:
    protocol = Protocol(
        epoch_examples=8192, held_out_examples=200, max_epochs=30, stop_when_solved=True
    )
    more = {**WHERE, "width": 8, "n": 2, "seeds": [0], "protocol": protocol}
    report = ithbit.probe("lstm", store=tmp_path, **more)
    rhi = report.runs[0]
    assert (rhi.solved, rhi.stopped_by, rhi.verdict) == (True, "solved", "right on all inputs")
    assert rhi.first_solved_epoch == rhi.epochs < 30
    (folder,) = tmp_path.glob(f"*-{rhi.run_id}")
    assert folder_status(folder) == "done"
    assert json.loads((folder / "verification.json").read_text())["verdict"] == rhi.verdict
    (result,) = ithbit.train(
        "rhi", "torch:lstm", n=2, width=8, seeds=[0], protocol=protocol, store=tmp_path
    )
    assert (result.spec.run_id, result.epochs) == (rhi.run_id, rhi.epochs)
    written = (folder / "result.json").stat().st_mtime_ns
    assert ithbit.probe("torch:lstm", store=tmp_path, **more).runs == report.runs
    assert (folder / "result.json").stat().st_mtime_ns == written
    (kept,) = (tmp_path / "probe").glob("lstm-*/report.json")
    again, first = json.loads(kept.read_text()), json.loads(json.dumps(report.to_json()))
    for timed in ("behaviour", "contract"):  # how much the check tried depends on the time
        assert again.pop(timed).keys() == first.pop(timed).keys()
    assert again == first


def test_runs_that_fail_are_told(tmp_path: Path) -> None:
    longer = replace(SHORT, max_epochs=40)
    report = ithbit.probe(
        f"{TOY_LAYERS}:RaisesLate", n=3, seeds=[0], protocol=longer, store=tmp_path, **WHERE
    )
    assert report.runs == ()  # that they could not be run says nothing of the layer
    said = "2 runs failed, not counted: ValueError: too far from home"
    assert said in report.remarks
    assert said in flat(report_text(report))
    assert "/1" not in report_text(report)


def test_runs_that_diverge_are_counted(tmp_path: Path) -> None:
    wild = replace(SHORT, learning_rate=1e38)
    report = ithbit.probe("lstm", n=3, seeds=[0], protocol=wild, store=tmp_path, **WHERE)
    assert [(run.epochs, run.stopped_by) for run in report.runs] == [(1, "not finite")] * 2
    assert str(report.counts("rhi")[0][1][0]) == "0/1"
    assert "2 runs diverged: the loss was no longer finite" in report.remarks
    (layer,) = probed_layers(tmp_path)
    assert layer.solved == "RHI n=3 L=1: 0/1, LHI n=3 L=1: 0/1"


def test_what_exists_in_a_session_alone_is_kept_too(tmp_path: Path) -> None:
    heads = 2

    def mine(width: int) -> torch.nn.Module:
        return torch.nn.Linear(width, width) if heads else torch.nn.Identity()

    more = {**WHERE, "workers": 2, "n": 3, "seeds": [0], "protocol": SHORT, "store": tmp_path}
    report = ithbit.probe(mine, **more)
    assert report.family == "python:mine"
    assert (
        "a layer without a file cannot be resumed: the next probe trains it again" in report.remarks
    )
    heads = 3  # another layer, although no line of it differs
    assert ithbit.probe(mine, **more).code != report.code


def test_a_factory_without_readable_code_is_trained_and_stored_too(tmp_path: Path) -> None:
    class Made:
        def __call__(self, width: int) -> torch.nn.Module:
            return torch.nn.Linear(width, width)

    report = ithbit.probe(Made(), n=3, seeds=[0], protocol=SHORT, store=tmp_path, **WHERE)
    assert len(report.runs) == 2
    assert set(ithbit.runs(tmp_path)["family"]) == {"python:Made"}
