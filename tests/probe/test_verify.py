"""Verification: exhaustive where feasible, honest words elsewhere, records that can be trusted."""

import json
from pathlib import Path

import pytest
import torch

from ithbit.engine.device import choose_device
from ithbit.engine.loop import train
from ithbit.engine.spec import Protocol, RunSpec
from ithbit.errors import SpecError, StoreError
from ithbit.models import classifier
from ithbit.models.spec import ModelSpec
from ithbit.probe.margins import Case, Model
from ithbit.probe.verify import examine, model_of, read_run, recorded, verify_run
from ithbit.tasks.sampling import Examples
from ithbit.tasks.tokens import token_table

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
    found = examine(planted(lookup, bits, index), 16, CPU, workers=1)
    assert found.verdict == "counterexample"
    assert (found.n_evaluated, found.n_wrong, found.wrong_by_index) == (1 << 20, 1, {index: 1})
    assert found.counterexample == Case(bits, index, -5.0)
    assert found.accuracy == 1 - 2**-20
    assert "wrong on 1 of all 1,048,576 inputs" in found.sentence()


def test_a_small_budget_does_not_shorten_16_bits() -> None:
    found = examine(lookup, 16, CPU, budget=10, workers=1)
    assert (found.verdict, found.n_evaluated) == ("verified on all inputs", 1 << 20)
    assert found.sentence() == "observed right on all 1,048,576 inputs, least margin 5"


@pytest.mark.parametrize("family", ["gru", "mamba2", "softmax-full", "linear-causal"])
def test_a_planted_input_in_a_network_is_caught(family: str) -> None:
    model = network(ModelSpec("lhi", family, n_bits=8, n_layers=2))
    assert examine(model, 8, CPU, workers=2).verdict == "verified on all inputs"
    found = examine(planted(model, "01100101", 3), 8, CPU, workers=2)
    assert found.verdict == "counterexample"
    assert found.wrong_by_index == {3: 1}


@pytest.mark.slow
def test_a_planted_input_in_a_two_layer_network_at_16_bits_is_caught() -> None:
    model = planted(network(ModelSpec("rhi", "mamba2", 16, 2)), "0110100110010110", 7)
    found = examine(model, 16, CPU)
    assert (found.n_wrong, found.wrong_by_index) == (1, {7: 1})


def test_what_fails_only_in_a_batch_is_no_counterexample() -> None:
    def moody(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Answers one input wrong in company, as rounding may."""
        alone = len(index) == 1
        hit = (bits.sum(1) == 0) & (index == 2) & (not alone)
        return torch.where(hit, 1e-7, lookup(bits, index))

    found = examine(moody, 8, CPU, workers=1)
    assert (found.verdict, found.n_wrong, found.counterexample) == ("unsettled", 1, None)
    assert "1 inputs wrong in a batch and right alone" in found.sentence()


def test_what_fails_only_alone_is_a_counterexample() -> None:
    def moody(bits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        sign = -1 if len(index) == 1 else 1
        near = (bits.sum(1) == 0) & (index == 2)
        return torch.where(near, sign * 1e-9 * lookup(bits, index), lookup(bits, index))

    found = examine(moody, 8, CPU, workers=1)
    assert (found.verdict, found.wrong_by_index) == ("counterexample", {2: 1})


def test_beyond_the_budget_nothing_is_called_verified() -> None:
    found = examine(lookup, 24, CPU, budget=50_000, workers=1)
    assert (found.verdict, found.exhaustive) == ("no counterexample found", False)
    assert found.accuracy is None
    assert found.n_evaluated <= 50_000
    assert found.sentence().startswith("no counterexample in ")


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(SpecError, match="the budget is a number of inputs from 1, got 0"):
        examine(lookup, 8, CPU, budget=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two short epochs: not solved."""
    protocol = Protocol(epoch_examples=512, max_epochs=2, held_out_examples=64)
    run = RunSpec(ModelSpec("lhi", "gru", n_bits=4), 0, protocol)
    train([run], tmp_path, choose_device("cpu"))
    return tmp_path / f"{run.name}-{run.run_id}"


def test_the_record_of_a_run(folder: Path) -> None:
    device = choose_device("cpu")
    assert recorded(folder) is None
    found = verify_run(folder, device)
    record = recorded(folder)
    assert record is not None
    assert record["verdict"] == found.verdict == "counterexample"
    assert (record["schema"], record["dtype"], record["n_evaluated"]) == (1, "float32", 64)
    assert sum(record["wrong_by_index"].values()) == record["n_wrong"]
    # The counterexample reproduces from the record and the weights alone.
    case = record["counterexample"]
    run, weights = read_run(folder)
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


def test_a_record_of_another_version_does_not_count(folder: Path) -> None:
    verify_run(folder, choose_device("cpu"))
    path = folder / "verification.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
    assert recorded(folder) is None
