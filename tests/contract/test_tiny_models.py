"""Hugging Face's models, built small: known faults of the versions that were tried are found, and
correct models raise no alarm."""

import pytest
import torch
from tests.support.model_clauses import clause_of, shown

from ithbit.contract.model_sources import is_whole_model, model_source
from ithbit.contract.tiny_models import causal_models, tiny_model
from ithbit.errors import LayerError

transformers = pytest.importorskip("transformers")

SEEN_IN = ("5.22.2", "5.23.0")  # a later version may have mended them
FAULTS = [
    ("ProphetNetForCausalLM", "causal"),
    ("RwkvForCausalLM", "cache"),
    ("MambaForCausalLM", "chunks"),
    pytest.param("ProphetNetForCausalLM", "cache", marks=pytest.mark.slow),
    pytest.param("FalconMambaForCausalLM", "chunks", marks=pytest.mark.slow),
    pytest.param("JambaForCausalLM", "chunks", marks=pytest.mark.slow),
    pytest.param("ZambaForCausalLM", "chunks", marks=pytest.mark.slow),
    pytest.param("BambaForCausalLM", "cache", marks=pytest.mark.slow),
    pytest.param("Zamba2ForCausalLM", "cache", marks=pytest.mark.slow),
    pytest.param("NemotronHForCausalLM", "cache", marks=pytest.mark.slow),
    pytest.param("MiniMaxForCausalLM", "cache", marks=pytest.mark.slow),
    pytest.param("MoshiForCausalLM", "cache", marks=pytest.mark.slow),
]
CORRECT = [
    "LlamaForCausalLM",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            *("GPT2LMHeadModel", "Mamba2ForCausalLM", "RoFormerForCausalLM"),
            *("Zamba2ForCausalLM", "NemotronHForCausalLM", "Qwen3MoeForCausalLM"),
        )
    ),
]


@pytest.mark.skipif(transformers.__version__ not in SEEN_IN, reason="another version")
@pytest.mark.parametrize(("name", "clause"), FAULTS)
def test_a_known_fault_is_found_and_shown_alone(name, clause) -> None:
    result = clause_of(model_source(f"transformers:{name}"), clause, is_redrawn=True, seconds=3.0)
    assert result.outcome == "broken", result.note
    if result.finding.size is not None:
        assert shown(result.finding.code) == pytest.approx(result.finding.size, rel=0.05)


@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_model_is_causal(name) -> None:
    for is_redrawn in (False, True):
        result = clause_of(model_source(f"transformers:{name}"), "causal", is_redrawn=is_redrawn)
        assert result.outcome == "kept", result.finding


@pytest.mark.parametrize("clause", ["cache", "chunks", "padding", "batch", "length"])
def test_llama_keeps_the_rest(clause) -> None:
    source = model_source("transformers:LlamaForCausalLM")
    assert clause_of(source, clause, is_redrawn=True).outcome == "kept"


def test_a_model_is_small_and_its_weights_follow_the_seed() -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(tiny_model("GPT2LMHeadModel"))
    weights = [model.transformer.wte.weight for model in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert sum(p.numel() for p in models[0].parameters()) < 100_000
    assert causal_models()["gpt2"] == "GPT2LMHeadModel"


@pytest.mark.parametrize("name", ["NoSuchModel", "AutoModelForCausalLM", "logging"])
def test_another_name_is_refused(name) -> None:
    with pytest.raises(LayerError, match=f"has no model class {name}"):
        tiny_model(name)


def test_a_model_without_a_head_is_checked_by_its_last_states() -> None:
    model = tiny_model("LlamaForCausalLM").model
    assert is_whole_model(model)
    assert clause_of(model_source(model), "cache").outcome == "kept"
