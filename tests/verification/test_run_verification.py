"""Verification: exhaustive where feasible, honest words elsewhere, records that can be trusted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from tests.support.one_stack import train

from ithbit.engine.device import choose_device
from ithbit.engine.steppers.choice import evaluator_here
from ithbit.errors import SpecError, StoreError, TooLargeError
from ithbit.models import classifier
from ithbit.models.classifier import stack
from ithbit.native import building
from ithbit.spec import ModelSpec, Protocol, RunSpec
from ithbit.store.reading import read_verification
from ithbit.store.records import Proof
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table
from ithbit.verification.input_search import Case, Model, agree
from ithbit.verification.record_merging import is_enough, may_be_proved
from ithbit.verification.run_verification import (
    check_length,
    model_of,
    try_inputs,
    verify_model,
    verify_run,
)
from ithbit.verification.stored_run import read_stored_run

CPU = torch.device("cpu")


def network(spec: ModelSpec) -> Model:
    """An untrained network whose sign is put right: every margin is its own |logit|."""
    params = classifier.stack([classifier.init(spec, 0)])
    table = token_table(spec.task, spec.n_bits)

    def model(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        examples = Examples(bits[None], index[None])
        out = classifier.logits(params, spec, table, examples)[0].abs() + 0.01
        return torch.where(examples.answer[0] == 1, out, -out)

    return model


def planted(model: Model, bits: str, index: int) -> Model:
    """The same but for one input, which it answers wrong."""
    wanted = torch.tensor([int(bit) for bit in bits], dtype=torch.uint8)

    def wrapped(b: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        hit = (b == wanted).all(1) & (i == index)
        out = model(b, i)
        return torch.where(hit, -out, out)

    return wrapped


def lookup(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return 10.0 * bits.gather(1, index[:, None] - 1)[:, 0] - 5


@pytest.mark.parametrize(
    ("bits", "index"), [("0" * 16, 1), ("1" * 16, 16), ("0110100110010110", 7)]
)
def test_one_planted_wrong_input_at_16_bits_is_caught(bits: str, index: int) -> None:
    found = verify_model(planted(lookup, bits, index), 16, CPU, workers=1, count=True)
    assert found.verdict == "refuted"
    assert (found.n_evaluated, found.n_wrong, found.wrong_by_index) == (1 << 20, 1, {index: 1})
    assert found.counterexample == Case(bits, index, -5.0)
    assert found.accuracy == 1 - 2**-20
    assert "wrong on 1 of all 1,048,576 inputs" in found.sentence()


def test_a_small_budget_does_not_shorten_16_bits() -> None:
    found = verify_model(lookup, 16, CPU, budget=10, workers=1)
    assert (found.verdict, found.n_evaluated) == ("right on all inputs", 1 << 20)
    assert found.sentence() == "observed right on all 1,048,576 inputs, least margin 5"


@pytest.mark.parametrize("family", ["gru", "mamba2", "softmax-full", "linear-causal"])
def test_a_planted_input_in_a_network_is_caught(family: str) -> None:
    model = network(ModelSpec("lhi", family, n_bits=8, n_layers=2))
    assert verify_model(model, 8, CPU, workers=2).verdict == "right on all inputs"
    found = verify_model(planted(model, "01100101", 3), 8, CPU, workers=2)
    assert found.verdict == "refuted"
    assert found.wrong_by_index == {3: 1}


@pytest.mark.slow
def test_a_planted_input_in_a_two_layer_network_at_16_bits_is_caught() -> None:
    model = planted(network(ModelSpec("rhi", "mamba2", 16, 2)), "0110100110010110", 7)
    found = verify_model(model, 16, CPU, count=True)
    assert (found.n_wrong, found.wrong_by_index) == (1, {7: 1})


def test_what_fails_only_in_a_batch_is_no_counterexample() -> None:
    def moody(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Answers one input wrong in company, as rounding may."""
        alone = len(index) == 1
        hit = (bits.sum(1) == 0) & (index == 2) & (not alone)
        return torch.where(hit, 1e-7, lookup(bits, index))

    found = verify_model(moody, 8, CPU, workers=1)
    assert (found.verdict, found.n_wrong, found.counterexample) == ("unsettled", 1, None)
    assert "1 inputs wrong in a batch and right alone" in found.sentence()


def test_what_fails_only_alone_is_a_counterexample() -> None:
    def moody(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        sign = -1 if len(index) == 1 else 1
        near = (bits.sum(1) == 0) & (index == 2)
        return torch.where(near, sign * 1e-9 * lookup(bits, index), lookup(bits, index))

    found = verify_model(moody, 8, CPU, workers=1)
    assert (found.verdict, found.wrong_by_index) == ("refuted", {2: 1})


def test_large_margins_within_rounding_are_evaluated_alone_too() -> None:
    """As with weights of 1e9: rounding moves margins by 5, and those of one string by 100."""

    def model(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        alone = len(index) == 1
        margin = 10.0 + bits.sum(1) * 10 + index + (5.0 if alone else 0.0)
        margin = torch.where((bits.sum(1) == 4) & alone, -48.0, margin)
        return margin * (2.0 * bits.gather(1, index[:, None] - 1)[:, 0] - 1)

    found = verify_model(model, 4, CPU)
    assert found.verdict == "refuted"
    assert found.counterexample == Case("1111", 1, -48.0)


def test_beyond_the_budget_nothing_is_called_verified() -> None:
    found = verify_model(lookup, 24, CPU, budget=50_000, workers=1)
    assert (found.verdict, found.exhaustive) == ("not refuted", False)
    assert found.accuracy is None
    assert found.n_evaluated <= 50_000
    assert [stage["name"] for stage in found.stages or []] == [
        "structured", "densities", "descent", "two bits", "descent", "search",
    ]  # fmt: skip
    assert sum(stage["tried"] for stage in found.stages or []) == found.n_evaluated
    assert found.sentence().startswith("nothing found in ")
    assert ", 781 densities, " in found.effort


@pytest.mark.parametrize(
    ("bits", "index", "method"),
    [
        ("0" * 32, 32, "structured"),
        ("0" * 31 + "1", 32, "structured"),
        ("1" * 20 + "0" * 12, 3, "structured"),
        ("01" * 16, 16, "structured"),
        ("1" * 9 + "0" + "1" * 12 + "0" + "1" * 9, 1, "two bits"),
    ],
)
def test_the_first_wrong_answer_ends_it(bits: str, index: int, method: str) -> None:
    found = verify_model(planted(lookup, bits, index), 32, CPU, workers=1)
    assert (found.verdict, found.method, found.n_wrong) == ("refuted", method, 1)
    assert found.counterexample == Case(bits, index, -5.0)
    assert found.n_evaluated < (8_000 if method == "structured" else 130_000)
    assert found.accuracy is None
    assert f"wrong on 1 of {found.n_evaluated:,} tries" in found.sentence()
    counted = verify_model(planted(lookup, bits, index), 32, CPU, 1 << 18, workers=1, count=True)
    assert (counted.verdict, counted.method) == ("refuted", "search")
    assert counted.n_evaluated > 200_000


def test_later_stages_find_what_is_not_so_plain() -> None:
    """A dense string with a sparse end; then three bits that no kind of string has set alone."""

    def dense_then_sparse(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        hit = (bits[:, 0] == 0) & (bits[:, :16].sum(1) == 13) & (bits[:, 16:].sum(1) <= 1)
        return torch.where(hit, -1.0, 1.0) * lookup(bits, index)

    def three(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        missing = 3 - bits[:, [3, 11, 26]].sum(1) + (bits.sum(1) - 3).abs()
        return (missing - 0.5) * lookup(bits, index)

    assert verify_model(dense_then_sparse, 32, CPU, workers=1).method == "densities"
    found = verify_model(three, 32, CPU, workers=1)
    assert (found.verdict, found.method) == ("refuted", "descent")
    assert found.counterexample is not None
    assert [i for i, bit in enumerate(found.counterexample.bits) if bit == "1"] == [3, 11, 26]


def test_at_16_bits_the_likely_come_first_and_all_follow() -> None:
    found = verify_model(planted(lookup, "0" * 15 + "1", 16), 16, CPU, workers=1)
    assert (found.verdict, found.method, found.exhaustive) == ("refuted", "structured", False)
    found = verify_model(planted(lookup, "0110100110010110", 7), 16, CPU, workers=1)
    assert (found.verdict, found.method, found.exhaustive) == ("refuted", "all inputs", False)
    found = verify_model(lookup, 16, CPU, workers=1)
    assert (found.verdict, found.method, found.n_evaluated) == (
        "right on all inputs", "all inputs", 1 << 20,
    )  # fmt: skip


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(SpecError, match="the budget is a number of inputs from 1, got 0"):
        verify_model(lookup, 8, CPU, budget=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two short epochs: not solved."""
    protocol = Protocol(epoch_examples=512, max_epochs=2, held_out_examples=64)
    run = RunSpec(ModelSpec("lhi", "gru", n_bits=4), 0, protocol)
    train([run], tmp_path, choose_device("cpu"))
    return tmp_path / f"{run.name}-{run.run_id}"


def test_the_record_of_a_run(folder: Path) -> None:
    device = choose_device("cpu")
    assert read_verification(str(folder)) is None
    found = verify_run(folder, device)
    record = json.loads((folder / "verification.json").read_text())
    assert record["verdict"] == found.verdict == "refuted"
    assert (record["schema"], record["dtype"], record["n_evaluated"]) == (1, "float32", 64)
    assert (record["method"], record["effort"]) == ("all inputs", "64 all inputs")
    assert record["stages"][0]["tried"] == 64
    assert sum(record["wrong_by_index"].values()) == record["n_wrong"]
    # The counterexample reproduces from the record and the weights alone.
    case = record["counterexample"]
    stored = read_stored_run(folder)
    run, weights = stored.spec, stored.weights
    bits = torch.tensor([[int(bit) for bit in case["bits"]]], dtype=torch.uint8)
    logit = float(model_of(run, weights, CPU)(bits, torch.tensor([case["index"]])))
    assert (logit if bits[0, case["index"] - 1] else -logit) == case["margin"] <= 0


def test_bad_folders_are_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no readable run: it has no spec\.json; half copied\?"):
        verify_run(tmp_path, choose_device("cpu"))
    weights = folder / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    with pytest.raises(StoreError, match=r"the weights of lhi_n4_gru.* are damaged"):
        verify_run(folder, choose_device("cpu"))
    weights.unlink()
    with pytest.raises(StoreError, match=r"has no weights\.safetensors"):
        verify_run(folder, choose_device("cpu"))
    (folder / "result.json").write_text("{")
    with pytest.raises(StoreError, match=r"no readable run: result\.json is not valid JSON"):
        verify_run(folder, choose_device("cpu"))
    (folder / "result.json").unlink()
    with pytest.raises(StoreError, match=r"has no result\.json: only a finished run"):
        verify_run(folder, choose_device("cpu"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("verified on all inputs", "right on all inputs"),
        ("counterexample", "refuted"),
        ("no counterexample found", "not refuted"),
        ("unsettled", "unsettled"),
    ],
)
def test_words_of_the_first_version_are_read(folder: Path, old: str, new: str) -> None:
    verify_run(folder, choose_device("cpu"))
    path = folder / "verification.json"
    record = json.loads(path.read_text())
    for name in ("method", "stages", "effort", "count"):
        record.pop(name, None)
    record |= {"verdict": old, "exhaustive": new == "right on all inputs"}
    if new != "refuted":
        record |= {"counterexample": None, "n_wrong": 0, "wrong_by_index": {}}
        record["worst"]["margin"] = 1.0
    path.write_text(json.dumps(record))
    found = read_verification(str(folder))
    assert found is not None
    assert found.found.verdict == new
    # A search of the first version did not try the likely inputs first.
    assert is_enough(found, 1, count=False) == (new in ("refuted", "right on all inputs"))
    assert is_enough(found, 1, count=True) == (new == "right on all inputs")


def test_what_a_record_leaves_to_be_said(folder: Path) -> None:
    stored = read_stored_run(folder)
    record = try_inputs(stored, None, choose_device("cpu"), 64, 0, count=False)
    searched = replace(record.found, verdict="not refuted", exhaustive=False)
    record = replace(record, found=searched)
    assert is_enough(record, 64, count=False)
    assert not is_enough(record, 65, count=False)
    assert not is_enough(record, 64, count=True)
    assert may_be_proved(record, 1)
    record = replace(record, found=replace(searched, proof=Proof("open", seconds=10)))
    assert may_be_proved(record, 11)
    assert not may_be_proved(record, 10)


def test_a_record_of_another_version_does_not_count(folder: Path) -> None:
    verify_run(folder, choose_device("cpu"))
    path = folder / "verification.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
    assert read_verification(str(folder)) is None


def test_runs_whose_inputs_are_too_long_are_refused_in_a_sentence():
    def run(n_bits: int) -> RunSpec:
        return RunSpec(ModelSpec("rhi", "gru", n_bits), seed=0)

    check_length(run(4096), budget=1 << 20)
    with pytest.raises(TooLargeError, match=r"verified up to n = 14,267, .*, got n = 100,000,000"):
        check_length(run(10**8), budget=1 << 20)
    with pytest.raises(TooLargeError, match=r"needs at least .*; take a smaller --budget"):
        check_length(run(14_000), budget=10**18)


def test_long_inputs_are_tried_a_few_at_a_time(tmp_path, monkeypatch):
    protocol = Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    run = RunSpec(ModelSpec("rhi", "softmax-full", 6, 2), 0, protocol)
    train([run], tmp_path, choose_device("cpu"))
    stored = read_stored_run(tmp_path / run.folder)
    model = model_of(stored.spec, stored.weights, CPU)
    bits = torch.randint(0, 2, (20, 6), dtype=torch.uint8, generator=torch.Generator())
    index = torch.arange(20) % 6 + 1
    whole = model(bits, index)
    monkeypatch.setattr("ithbit.engine.evaluate._NUMBERS", 3 * (2 * 7**2 + 4 * 16 * 7))
    torch.testing.assert_close(model(bits, index), whole)
    sizes = []

    def counted(*given):
        sizes.append(len(given[-1].index[0]))
        return given[-1].index.float()

    monkeypatch.setattr(
        "ithbit.verification.run_verification.evaluator_here", lambda *given: (counted, "stacked")
    )
    model_of(stored.spec, stored.weights, CPU)(bits, index)
    assert sizes == [3] * 6 + [2]


def test_compiled_code_finds_the_margins_of_the_plain_models(monkeypatch) -> None:
    """And where it is there, verification takes it."""
    pytest.importorskip("numba")
    run = RunSpec(ModelSpec("rhi", "gru", 4), 0)
    weights, stacked = save(classifier.init(run.model, 0)), stack([classifier.init(run.model, 0)])
    monkeypatch.setattr(building, "ready", lambda spec: False)
    assert evaluator_here(run.model, stacked, CPU)[1] == "stacked"
    plain = verify_model(model_of(run, weights, CPU), 4, CPU, count=True)
    monkeypatch.setattr(building, "ready", lambda spec: True)
    assert evaluator_here(run.model, stacked, CPU)[1] == "compiled"
    found = verify_model(model_of(run, weights, CPU), 4, CPU, count=True)
    assert (found.n_evaluated, found.n_wrong) == (plain.n_evaluated, plain.n_wrong)
    assert found.worst.margin == pytest.approx(plain.worst.margin, abs=1e-5)


def test_an_answer_that_was_wrong_before_all_inputs_were_tried_counts() -> None:
    """The rounding of one batch puts a margin on the other side of 0; later batches do not."""
    calls = 0

    def model(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        out = 1e-6 * lookup(bits, index)
        out[0] *= -1 if calls == 1 else 1
        return out

    found = verify_model(model, 14, CPU, workers=1)
    assert found.exhaustive
    assert found.verdict == "unsettled"
    assert found.stages[0]["wrong"] == 1


@pytest.mark.parametrize(
    ("compiled", "plain", "verdict"),
    [
        (1.0, None, "refuted"),  # trusted, compiled code would call it right on all inputs
        (-1.0, 1.0, "unsettled"),
        (1.0, 2.0, "right on all inputs"),
        (1.0, 1.4, "right on all inputs"),
    ],
)
def test_compiled_code_does_not_outvote_the_plain_models(
    folder: Path, monkeypatch, compiled, plain, verdict
) -> None:
    """Stand-ins that answer every input with the same margin; None for what was trained."""

    def answers(margin: float):
        return lambda params, spec, table, examples: margin * (2.0 * examples.answer - 1)

    where = "ithbit.verification.run_verification."
    monkeypatch.setattr(where + "evaluator_here", lambda *given: (answers(compiled), "compiled"))
    if plain is not None:
        monkeypatch.setattr(where + "stacked_logits", answers(plain))
    record = try_inputs(read_stored_run(folder), None, choose_device("cpu"), 1000, 0, False)
    assert record.found.verdict == verdict
    assert record.environment["path"] == ("compiled" if plain == 1.4 else "stacked")
    if verdict == "unsettled":  # nothing was on record
        assert "wrong before or by compiled code" in record.found.sentence()


def test_random_inputs_of_a_long_run_are_compared() -> None:
    found = verify_model(lookup, 24, CPU, budget=50_000, workers=1)
    assert agree(lookup, lookup, found)
    assert not agree(lookup, lambda bits, index: lookup(bits, index) * torch.nan, found)
    assert not agree(lookup, lambda *given: lookup(*given) * (1 + given[0][:, 3]), found)
