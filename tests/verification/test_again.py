"""Verifying again: what is known of the same weights is never lost; of others nothing counts."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import WEIGHTS

import ithbit
from ithbit.engine.device import choose_device
from ithbit.store.folder import keep_verification
from ithbit.store.reading import read_verification
from ithbit.store.records import SECOND, Case, Proof, Verification, VerificationRecord
from ithbit.verification.record_merging import merge_records
from ithbit.verification.run_verification import verify_run

CPU = choose_device("cpu")
SHIPPED = WEIGHTS / "uniform"
REFUTED = next(SHIPPED.glob("lhi_n64_gru_L1d16h2_polynomial_s3-*"))


@pytest.fixture
def right(tmp_path: Path) -> Path:
    """The folder of a run that is right on all 2,048 inputs."""
    ithbit.construct("lhi", "gru", 8, model="trained", out=tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    return folder


def on_record(folder: Path) -> VerificationRecord:
    record = read_verification(str(folder))
    assert record is not None
    return record


def searched(folder: Path, budget: int = 100) -> Verification:
    """Verified by a search, although all inputs could be tried."""
    return verify_run(folder, CPU, budget, always=1)


@pytest.mark.parametrize(
    "options",
    [{"budget": 3000, "count": True}, {"budget": 5000}, {"budget": 3000, "again": True}],
)
def test_a_refuted_run_stays_refuted(tmp_path: Path, options: dict) -> None:
    """These budgets alone find no wrong answer: the one on record is asked for again."""
    folder = Path(shutil.copytree(REFUTED, tmp_path / REFUTED.name))
    before = on_record(folder).found
    every = "again" in options or "count" in options
    (found,) = ithbit.verify(
        None if every else folder, all_runs=every, device="cpu", store=tmp_path, **options
    )
    now = on_record(folder).found
    assert found.verdict == now.verdict == "refuted"
    assert before.worst.margin is not None
    assert now.worst.margin is not None
    assert now.worst.margin <= before.worst.margin + 1e-3
    if options.get("count"):
        assert now.stages is not None
        assert now.stages[0]["name"] == "on record"
        assert "(1 on record, " in str(found)
    else:
        assert now == before
        assert str(found).startswith(f"on record: {folder.name}: refuted: wrong on ")
        assert "(nothing new found now)" in str(found)


def test_without_its_record_the_wrong_input_is_not_found(tmp_path: Path) -> None:
    """Which is what makes the test above one."""
    folder = Path(shutil.copytree(REFUTED, tmp_path / REFUTED.name))
    (folder / "verification.json").unlink()
    assert verify_run(folder, CPU, 3000, count=True).verdict == "not refuted"


def test_a_search_does_not_replace_all_inputs(right: Path) -> None:
    found = verify_run(right, CPU)
    file = right / "verification.json"
    written = file.stat().st_mtime_ns, file.stat().st_ino
    assert found.verdict == "right on all inputs"
    assert searched(right, 1000) == found
    assert verify_run(right, CPU).seconds == found.seconds  # tried again, and nothing new
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == written


def test_all_inputs_replace_a_search_and_more_tries_fewer(right: Path) -> None:
    for budget, stays in ((100, 100), (300, 300), (200, 300)):
        assert searched(right, budget).verdict == "not refuted"
        assert on_record(right).budget == stays
    assert verify_run(right, CPU, 50).verdict == "right on all inputs"


def lowered(by: float) -> Callable[[Verification], Verification]:
    def change(found: Verification) -> Verification:
        assert found.worst.margin is not None
        return replace(found, worst=Case("01" * 4, 3, found.worst.margin - by))

    return change


@pytest.mark.parametrize("budgets", [(100, 300), (300, 100), (300, 300)])
def test_the_least_margin_stays_with_its_input(right: Path, budgets: tuple[int, int]) -> None:
    """Whichever of the two tried more, and whichever saw it."""
    searched(right)
    record = on_record(right)
    first, second = (replace(record, budget=budget) for budget in budgets)
    low = lowered(0.01)(record.found)
    assert merge_records(replace(first, found=low), second).found.worst == low.worst
    both = merge_records(first, replace(second, found=low))
    assert (both.found.worst, both.budget) == (low.worst, max(budgets))
    if first.budget >= second.budget:  # within rounding
        assert merge_records(first, replace(second, found=lowered(1e-6)(record.found))) is first


def test_a_wrong_answer_that_is_right_here_is_unsettled(right: Path) -> None:
    """As on another device: the run is neither refuted nor cleared, until it is wrong again."""
    verify_run(right, CPU)
    record, case = on_record(right), Case("01100101", 3, -1e-7)
    wrong = {"n_wrong": 1, "wrong_by_index": {3: 1}, "worst": case, "counterexample": case}
    was = replace(record.found, verdict="refuted", exhaustive=False, **wrong)
    keep_verification(right, replace(record, found=was))
    for found in (searched(right), searched(right, 300), verify_run(right, CPU)):
        assert (found.verdict, found.n_wrong, found.worst) == ("unsettled", 0, case)
        assert found.sentence().startswith("an input that was answered wrong before or by compiled")
    unsettled = on_record(right)
    assert unsettled.found == found
    assert merge_records(unsettled, replace(record, found=was)).found == was


def test_a_proof_stays_even_where_it_is_open(right: Path) -> None:
    searched(right)
    fresh = replace(on_record(right), budget=300)
    for outcome, verdict in (("open", "not refuted"), ("proved", "proved on all inputs")):
        checked = SECOND if outcome == "proved" else ""
        proof = Proof(outcome, least_margin=0.1, seconds=9.0, checked=checked)
        before = replace(on_record(right), found=replace(fresh.found, proof=proof))
        both = merge_records(before, fresh)
        assert (both.budget, both.found.proof, both.found.verdict) == (300, proof, verdict)
    refuted = replace(fresh.found, verdict="refuted", counterexample=Case("01100101", 3, -1.0))
    assert merge_records(before, replace(fresh, found=refuted)).found.verdict == "refuted"


def test_a_record_of_other_weights_does_not_count(right: Path) -> None:
    verify_run(right, CPU)
    weights = right / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert read_verification(str(right)) is None
    assert ithbit.verify(all_runs=True, store=right.parent, device="cpu")[0].found is not None
    assert read_verification(str(right)) is not None
    weights.unlink()  # nothing to compare with
    assert read_verification(str(right)) is not None


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """The folder of a run with more inputs than are tried, after a short search."""
    ithbit.construct("rhi", "softmax-full", 20, model="trained", layers=3, out=tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    verify_run(folder, CPU, 1)
    return folder


def put_all_inputs_on_record(folder: Path, method: str = "all inputs", **changes: Any) -> None:
    """As if all had been tried, and a proof found, with a larger least margin than there is."""
    record = on_record(folder)
    was = record.found
    stage = {"name": "all inputs", "tried": was.n_inputs, "wrong": 0, "seconds": 88.8}
    found = replace(
        was,
        verdict="right on all inputs",
        exhaustive=True,
        n_evaluated=was.n_inputs,
        worst=replace(was.worst, margin=1e3),
        seconds=88.8,
        method=method,
        stages=[stage],
    )
    keep_verification(folder, replace(record, found=replace(found, **changes)))


def put_a_proof_on_record(folder: Path, method: str) -> None:
    record = on_record(folder)
    whose = {"run_id": record.run_id, "weights_sha256": record.weights_sha256, "margin": 0.5}
    (folder / "proof.json").write_text(json.dumps(whose))
    sha = hashlib.sha256((folder / "proof.json").read_bytes()).hexdigest()
    proof = Proof("proved", 0.5, checked=SECOND, certificate_sha256=sha)
    put_all_inputs_on_record(folder, method, verdict="proved on all inputs", proof=proof)


@pytest.mark.parametrize("method", ["all inputs", "search", "proof"])
@pytest.mark.parametrize("put", [put_all_inputs_on_record, put_a_proof_on_record])
def test_a_lower_margin_does_not_make_a_verdict_new(
    long: Path, put: Callable[[Path, str], None], method: str
) -> None:
    """Not all inputs were tried now, and no proof was checked, whatever method is recorded."""
    put(long, method)
    verdict = on_record(long).found.verdict
    found = ithbit.verify(long, budget=1, device="cpu", store=long.parent)
    assert found[0].is_new
    assert found[0].verdict == verdict
    assert found[0].to_json()["on_record"]
    lines = str(found).splitlines()
    assert all(line.startswith("on record: ") for line in lines), lines
    assert "88.8" not in str(found)


def test_an_open_proof_does_not_make_all_inputs_new(long: Path) -> None:
    put_all_inputs_on_record(long, "proof")
    found = ithbit.verify(long, budget=1, prove=True, device="cpu", store=long.parent)
    assert found[0].proof_is_new
    assert str(found).startswith(f"on record: {long.name}: right on all inputs")


@pytest.mark.parametrize("prove", [False, True])
def test_a_summary_says_what_is_on_record(long: Path, prove: bool) -> None:
    put_a_proof_on_record(long, "proof")
    ithbit.construct("lhi", "gru", 2, model="trained", out=long.parent)
    for old in (1, 2):
        found = ithbit.verify(all_runs=True, prove=prove, device="cpu", store=long.parent)
        assert [run["on_record"] for run in found.to_json()["runs"]].count(True) == old
        runs = "1 run" if old == 1 else "2 runs"
        assert f"\non record, neither tried nor checked now: {runs}\n" in str(found)


@pytest.mark.parametrize(
    "proof",
    [
        Proof("proved", -5.0, checked=SECOND),
        Proof("proved", checked=SECOND),
        Proof("bounded"),
        Proof("bounded", 0.5, least_found=0.25),
        Proof("bounded", 0.5, refused="it does not hold"),
    ],
)
def test_more_tries_do_not_raise_a_verdict_to_a_proof_that_is_none(
    long: Path, proof: Proof
) -> None:
    """Next to *not refuted*, what a record says of a proof is compared too."""
    record = on_record(long)
    keep_verification(long, replace(record, found=replace(record.found, proof=proof)))
    (found,) = ithbit.verify(long, budget=5000, device="cpu", store=long.parent)
    assert found.verdict == on_record(long).found.verdict == "not refuted"
    assert on_record(long).found.proof is None
