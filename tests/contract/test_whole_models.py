"""Models with one known fault each break the clause of that fault, and correct ones none; the code
of a finding shows it alone."""

from functools import partial

import pytest
import torch
from tests.support.model_clauses import clause_of, shown
from tests.support.small_language_models import AttentionModel, RecurrentModel

from ithbit.contract.findings import CheckSettings, ContractReport
from ithbit.contract.model_decoding import left_mask
from ithbit.contract.model_sources import ModelSource
from ithbit.contract.whole_models import check_model

FAULTS = [
    (AttentionModel, "cache off by one", "cache"),
    (AttentionModel, "positions ignore the cache", "cache"),
    (AttentionModel, "padding leaks", "padding"),
    (AttentionModel, "batch mixes", "batch"),
    (AttentionModel, "sees the mean of 32", "causal"),
    (AttentionModel, "scaled by length", "length"),
    (RecurrentModel, "several tokens forget", "chunks"),
    (RecurrentModel, "one token mixes rows", "cache"),
    (RecurrentModel, "counts calls", "stateless"),
    (RecurrentModel, "random", "deterministic"),
    (RecurrentModel, "changes its input", "input"),
]


def source(kind: type, fault: str) -> ModelSource:
    module = "tests.support.small_language_models"
    lines = f"from {module} import {kind.__name__}\nmodel = {kind.__name__}({fault!r})"
    return ModelSource(kind.__name__, partial(kind, fault), lines)


def checked(kind: type, fault: str, seconds: float, **settings: object) -> ContractReport:
    return check_model(source(kind, fault), CheckSettings(seconds=seconds, **settings))


@pytest.mark.parametrize(("kind", "fault", "clause"), FAULTS, ids=[each[1] for each in FAULTS])
def test_a_fault_breaks_its_clause_and_its_code_shows_it(kind, fault, clause) -> None:
    result = clause_of(source(kind, fault), clause)
    assert result.outcome == "broken", result.note
    finding = result.finding
    seen = shown(finding.code)
    assert seen > 10 * (finding.noise or 0)
    if clause not in ("deterministic", "stateless", "input"):
        assert seen == pytest.approx(finding.size, rel=0.02)
    correct = clause_of(source(kind, ""), clause)
    assert correct.outcome == "kept", correct


@pytest.mark.parametrize("kind", [AttentionModel, RecurrentModel])
def test_correct_models_keep_everything(kind) -> None:
    report = checked(kind, "", 0.6)
    assert report.exit_code == 0, report.text()
    for clause in ("causal", "deterministic", "stateless", "cache"):  # the first that are tried
        assert report.outcome(clause) == "kept", report.text()
    assert min(report.coverage.lengths) == 2
    assert report.coverage.futures > 1


def test_positions_that_are_passed_make_up_for_a_cache_without_them() -> None:
    result = clause_of(source(AttentionModel, "positions ignore the cache"), "cache")
    assert "not if position_ids are passed" in result.finding.sentence


def test_what_takes_no_mask_is_not_checked_with_one() -> None:
    result = clause_of(source(RecurrentModel, ""), "padding")
    assert (result.outcome, result.note) == ("not checked", "the model takes no attention_mask")


def test_an_allowed_clause_is_a_warning() -> None:
    report = checked(AttentionModel, "batch mixes", 0.5, allow=("batch",))
    assert report.outcome("batch") == "warning"
    assert report.exit_code == 0, report.text()


def test_a_random_model_is_compared_no_further() -> None:
    report = checked(RecurrentModel, "random", 0.5)
    assert report.outcome("deterministic") == "broken"
    assert report.outcome("causal") == "not checked"


def test_a_seed_replays() -> None:
    one, other, third = (
        clause_of(source(AttentionModel, "cache off by one"), "cache", seed).finding
        for seed in (3, 3, 4)
    )
    assert one == other != third


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: 3, "give a torch.nn.Module, got int"),
        (lambda: 1 / 0, "it cannot be built: ZeroDivisionError: division by zero"),
        (lambda: torch.nn.Linear(3, 3), "the number of tokens is unknown"),
        (lambda: torch.nn.Embedding(2, 3), "too few token ids are free to draw: 2 of 2"),
        (lambda: torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Flatten()), "logits must"),
    ],
)
def test_what_cannot_be_checked_says_why(build, reason) -> None:
    report = check_model(build, CheckSettings(seconds=0.5))
    assert report.exit_code == 2
    assert reason in report.cannot
    assert report.to_json()["verdict"] == "cannot be checked"


def test_global_state_is_as_before() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    checked(AttentionModel, "", 0.3)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_mask_hides_the_first_tokens() -> None:
    assert left_mask(torch.zeros(1, 3), 2).tolist() == [[0, 0, 1]]
