"""`ithbit verify --prove`: one verdict, one record, one certificate."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load, save
from shipped import folders, read

import ithbit
from ithbit.errors import SpecError, StoreError
from ithbit.prove.runs import on_record, prove_run
from ithbit.store.folder import keep_verification
from ithbit.store.reading import read_verification
from ithbit.store.records import Proof


def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path / folder.name


def test_a_run_is_proved_and_its_certificate_lies_beside_it(tmp_path) -> None:
    folder = copy(folders("rhi_n32_softmax-full_*_s4-*")[0], tmp_path)
    found = ithbit.verify(folder, prove=True, budget=1000, device="cpu", store=tmp_path)
    assert found[0].verdict == "proved on all inputs"
    text = str(found)
    assert "proved on all inputs: all 137,438,953,472, margin at least 12." in text
    assert "proof.json can be checked again" in text
    record = read_verification(str(folder))
    assert record is not None
    proof = record.found.proof
    assert proof is not None
    assert (proof.outcome, proof.share_closed, proof.certificate) == ("proved", 1, "proof.json")
    assert proof.least_margin == ithbit.check_certificate(folder / "proof.json").margin
    ithbit.verify(folder, budget=2000, device="cpu", store=tmp_path)  # keeps what was proved
    kept = read_verification(str(folder))
    assert kept is not None
    assert (kept.budget, kept.found.verdict, kept.found.proof) == (2000, found[0].verdict, proof)
    again = ithbit.verify(all=True, prove=True, budget=1000, device="cpu", store=tmp_path)
    assert again[0].found is None  # on record
    assert again.summary()["solved"] == {"runs": 1, "proved on all inputs": 1}


def test_a_record_is_kept_where_nothing_can_be_proved(tmp_path) -> None:
    folder = copy(folders("lhi_n32_gru_*_s0-*")[0], tmp_path)
    found = ithbit.verify(folder, prove=True, budget=1000, device="cpu", store=tmp_path)
    assert found[0].verdict == "not refuted"
    assert found[0].record["proof"]["outcome"] == "no bounds"
    assert not (folder / "proof.json").exists()


def test_what_is_wrong_in_real_arithmetic_is_refuted(tmp_path) -> None:
    """The record is of the sound weights: the proof alone sees that these are not."""
    folder = copy(folders("rhi_n16_softmax-full_*_s0-*")[0], tmp_path)
    params = {name: value.copy() for name, value in load(read(folder)[1]).items()}
    params["head.bias"] -= np.float32(14)
    (folder / "weights.safetensors").write_bytes(save(params))
    fresh = prove_run(folder, on_record(folder))
    keep_verification(folder, fresh)
    found = fresh.found
    assert found.verdict == "refuted"
    assert found.counterexample is not None
    assert not found.counterexample.right
    assert found.proof is not None
    assert found.proof.outcome == "refuted"
    assert not (folder / "proof.json").exists()
    record = read_verification(str(folder))
    assert record is not None
    assert record.found == found


def test_a_verdict_that_its_proof_denies_is_not_read(tmp_path) -> None:
    folder = copy(folders("rhi_n16_softmax-full_*_s0-*")[0], tmp_path)
    keep_verification(folder, prove_run(folder, on_record(folder)))
    file = folder / "verification.json"
    record = json.loads(file.read_text())
    for change in ({"outcome": "open"}, {"least_margin": None}, {"least_margin": -1.0}):
        file.write_text(json.dumps(record | {"proof": record["proof"] | change}))
        assert read_verification(str(folder)) is None
    file.write_text(json.dumps(record | {"proof": None}))
    assert read_verification(str(folder)) is None
    file.write_text(json.dumps(record))
    assert read_verification(str(folder)) is not None


def test_mistakes_are_named(tmp_path) -> None:
    folder = copy(folders("rhi_n16_softmax-full_*_s0-*")[0], tmp_path)
    with pytest.raises(SpecError, match="seconds above 0"):
        ithbit.verify(folder, prove=True, seconds=0)
    (folder / "verification.json").unlink()
    with pytest.raises(StoreError, match="no verification that a proof"):
        on_record(folder)


def test_proofs_say_what_they_came_to() -> None:
    assert "the rest open" in Proof("open", share_closed=0.5).sentence()
    assert "no bounds" in Proof("no bounds").sentence()
    assert "wrong in real" in Proof("refuted", found_at="bits 1, index 1").sentence()
