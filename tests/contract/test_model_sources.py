"""Models in every form that is taken: names, factories, instances, runs, families."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tests.support.small_language_models import AttentionModel, RecurrentModel

import ithbit
from ithbit.contract.findings import CheckSettings
from ithbit.contract.model_sources import ModelSource, is_whole_model, model_source
from ithbit.contract.own_models import EveryTokenModel, every_token, family_model
from ithbit.contract.whole_models import check_model
from ithbit.errors import LayerError
from ithbit.families import FAMILIES

QUICK = CheckSettings(seconds=0.2)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_checked_and_full_ones_read_all_tokens_by_design(family) -> None:
    report = check_model(family, QUICK)
    assert report.exit_code == 0, report.text()
    assert report.outcome("causal") == ("kept" if FAMILIES[family].causal else "not checked")
    assert report.outcome("batch") in ("kept", "not checked")


def test_full_attention_would_break_causal() -> None:
    source = ModelSource("full", lambda: family_model("softmax-full"), "")
    assert check_model(source, QUICK).outcome("causal") == "broken"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of a trained run."""
    tiny = ithbit.Protocol(batch_size=32, epoch_examples=64, held_out_examples=32, max_epochs=1)
    store = tmp_path_factory.mktemp("store")
    ithbit.train("rhi", "gru", n=4, seeds=[0], protocol=tiny, store=store, workers=1)
    return next(store.glob("rhi*"))


def test_a_run_is_checked_from_its_folder_and_as_loaded(folder) -> None:
    assert check_model(str(folder), QUICK).exit_code == 0
    model = ithbit.load(folder)
    assert is_whole_model(model)
    report = ithbit.check(model, seconds=0.2)
    assert (report.exit_code, report.outcome("causal")) == (0, "kept")


@torch.no_grad()
def test_the_last_logit_is_the_models_own(folder) -> None:
    ids = torch.tensor([[1, 0, 0, 1, 2 + 2]])  # bits 1001 and the query of 3
    for library in (True, False):
        model = ithbit.load(folder, library=library)
        logit = every_token(model)(ids)[0, -1, 0]
        assert float(logit) == pytest.approx(float(model("1001", 3)), abs=1e-5)


def test_a_construction_is_refused() -> None:
    solution = ithbit.construct("rhi", "softmax-full", n=4)
    with pytest.raises(LayerError, match="made for one length"):
        model_source(ithbit.load(solution))


def test_an_instance_keeps_its_weights_and_is_left_alone() -> None:
    torch.manual_seed(5)
    model = AttentionModel()
    before = model.head.weight.clone()
    source = model_source(model)
    assert torch.equal(source.build().head.weight, before)
    assert check_model(model, QUICK).exit_code == 0
    assert torch.equal(model.head.weight, before)
    assert not is_whole_model(torch.nn.Linear(2, 2))


def test_a_factory_is_called_without_arguments() -> None:
    assert isinstance(model_source(RecurrentModel).build(), RecurrentModel)
    assert isinstance(model_source(lambda: family_model("gru")).build(), EveryTokenModel)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (3, "a model is an nn.Module or a function, got int"),
        ("nothing", "'nothing' is no model; give PATH.py:factory"),
        ("missing.py:factory", "there is no file"),
    ],
)
def test_what_is_no_model_says_what_is(given, reason) -> None:
    with pytest.raises(LayerError, match=reason):
        model_source(given)


def test_without_transformers_a_sentence_says_so(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LayerError, match="needs transformers; install ithbit"):
        model_source("transformers:LlamaForCausalLM")
