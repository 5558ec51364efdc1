"""`ithbit verify --prove`: one verdict, one record, one certificate."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from tests.support.shipped import completions, folders, read

import ithbit
from ithbit.errors import SpecError, StoreError
from ithbit.store.folder import keep_verification
from ithbit.store.reading import read_verification
from ithbit.store.records import SECOND, Proof, VerificationRecord
from ithbit.theory.certificate_file import CannotReadError, CertificateError, digest
from ithbit.verification.input_search import margins
from ithbit.verification.proofs.branch_and_bound import read_part
from ithbit.verification.proofs.certificate import weights_of, write
from ithbit.verification.proofs.kinds import bounds_for
from ithbit.verification.proofs.one_layer import Float32
from ithbit.verification.proofs.run_proof import (
    confirm_certificate,
    prove_run,
    search_proof,
    tables_of,
)
from ithbit.verification.run_verification import model_of
from ithbit.verification.stored_run import read_stored_run


def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path / folder.name


def test_a_run_is_proved_and_its_certificate_lies_beside_it(tmp_path) -> None:
    folder = copy(folders("rhi_n32_softmax-full_*_s4-*")[0], tmp_path)
    keep_verification(folder, replace(on_record(folder), budget=10))  # a proof, and few tries
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
    assert proof.least_margin == json.loads((folder / "proof.json").read_text())["margin"]
    ithbit.verify(folder, budget=2000, device="cpu", store=tmp_path)  # keeps what was proved
    kept = read_verification(str(folder))
    assert kept is not None
    assert (kept.budget, kept.found.verdict, kept.found.proof) == (2000, found[0].verdict, proof)
    again = ithbit.verify(all_runs=True, prove=True, budget=1000, device="cpu", store=tmp_path)
    assert again[0].found is None  # on record
    assert again.summary()["solved"] == {"runs": 1, "proved on all inputs": 1}


def test_a_record_is_kept_where_nothing_can_be_proved(tmp_path) -> None:
    ithbit.construct("rhi", "softmax-full", 20, model="trained", layers=3, out=tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    found = ithbit.verify(folder, prove=True, budget=1000, device="cpu", store=tmp_path)
    assert found[0].verdict == "not refuted"
    assert found[0].record["proof"]["outcome"] == "no bounds"
    assert "  proof: no bounds for such a model, or for weights as large as these\n" in str(found)
    assert not (folder / "proof.json").exists()


def on_record(folder: Path) -> VerificationRecord:
    record = read_verification(str(folder))
    assert record is not None
    return record


def test_what_is_wrong_in_real_arithmetic_is_refuted(tmp_path) -> None:
    """The observations are of the sound weights: the proof alone sees that these are not."""
    folder = copy(folders("rhi_n16_softmax-full_*_s0-*")[0], tmp_path)
    params = {name: value.copy() for name, value in load(read(folder)[1]).items()}
    params["head.bias"] -= np.float32(14)
    sha = hashlib.sha256(save(params)).hexdigest()
    record = replace(on_record(folder), weights_sha256=sha)
    (folder / "weights.safetensors").write_bytes(save(params))
    said: list[str] = []
    fresh = prove_run(read_stored_run(folder), record, say=said.append)
    assert "proof.json does not hold and does not count: it is for other weights" in said[0]
    keep_verification(folder, fresh)
    found = fresh.found
    assert found.verdict == "refuted"
    assert found.counterexample is not None
    assert not found.counterexample.right
    assert found.proof is not None
    assert found.proof.outcome == "refuted"
    assert found.proof.checked == SECOND
    assert on_record(folder).found == found


def test_a_verdict_that_its_proof_denies_is_not_read(tmp_path) -> None:
    folder = copy(folders("rhi_n16_softmax-full_*_s0-*")[0], tmp_path)
    keep_verification(folder, prove_run(read_stored_run(folder), on_record(folder)))
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
    with pytest.raises(SpecError, match="seconds must be more than 0, got 0"):
        ithbit.verify(folder, prove=True, seconds=0)


def test_a_proof_that_was_cut_short_goes_on_where_it_stopped(tmp_path, monkeypatch) -> None:
    """By its budget, then by the user, then to the end; of other weights nothing is taken."""
    run, weights = read(folders("rhi_n16_softmax-full_*_s0-*")[0])
    file, part = tmp_path / "proof.json", tmp_path / "proof.part.safetensors"
    first, _ = search_proof(run, weights, file, seconds=1e-9)
    assert (first.outcome, first.nodes, part.exists()) == ("open", 32, True)

    def stop(found) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ithbit.verification.proofs.branch_and_bound._SPOKEN", -1.0)
    with pytest.raises(KeyboardInterrupt):
        search_proof(run, weights, file, watch=stop)
    sha = hashlib.sha256(weights).hexdigest()
    read_back = read_part(part, sha, 16)
    assert read_back is not None
    assert read_back[0].nodes >= 32
    assert read_part(part, "other", 16) is None
    last, _ = search_proof(run, weights, file)
    assert (last.outcome, last.share_closed, part.exists()) == ("proved", 1, False)
    assert last.nodes > read_back[0].nodes
    assert last.seconds > read_back[0].seconds
    part.write_bytes(b"no")
    with pytest.raises(CertificateError, match="it is damaged"):
        read_part(part, sha, 16)


def test_a_search_in_numbers_of_8_bits_or_too_deep_is_damaged(tmp_path) -> None:
    part = tmp_path / "proof.part.safetensors"
    arrays = {
        "index": np.arange(2),
        "bits": np.array([[0, -1], [1, -1]], np.int8),
        "limits": np.zeros((2, 0, 2)),
        "functionals": np.zeros((0, 2)),
    }
    about = {"format": "ithbit search 1", "weights_sha256": "sha"}
    deep = save(arrays, about | {"found": "[" * 100_000})
    data = save(arrays, about | {"found": '{"nodes": 1, "seconds": 1.0}'})
    end = 8 + int.from_bytes(data[:8], "little")
    head = data[8:end].replace(b'"I8"', b'"F8_E4M3"')
    for each in (deep, len(head).to_bytes(8, "little") + head + data[end:]):
        part.write_bytes(each)
        with pytest.raises(CertificateError, match="it is damaged"):
            read_part(part, "sha", 2)


@pytest.mark.parametrize("name", ["bounds_for", "search"])
def test_bounds_that_need_too_much_memory_are_a_sentence(tmp_path, monkeypatch, name) -> None:
    """Weights of one layer fit any n, and their bounds grow with its square."""

    def full(*_, **__):
        raise MemoryError

    run, weights = read(folders("rhi_n16_softmax-full_*_s0-*")[0])
    monkeypatch.setattr(f"ithbit.verification.proofs.run_proof.{name}", full)
    said: list[str] = []
    found, _ = search_proof(run, weights, tmp_path / "proof.json", say=said.append)
    assert found.outcome == "no bounds"
    assert "more memory than there is" in said[0]


def test_float32_runs_are_above_their_bound(rng) -> None:
    """As torch runs them, in a batch: no string of a node is below, and the error is not 0."""
    widths = []
    for folder in folders("rhi_n*_softmax-full_*_s3-*")[:2]:
        run, weights = read(folder)
        n, spec = run.model.n_bits, run.model
        bounds = Float32(spec, weights_of(weights), tables_of(spec, weights))
        exact = bounds_for(spec, weights_of(weights))
        model = model_of(run, weights, torch.device("cpu"))
        for free in (0, 0, 1, 4, n // 2):
            bits = rng.integers(0, 2, n).astype(np.int8)
            i = int(rng.integers(n))
            far = np.array(sorted(np.delete(np.arange(n), i), key=lambda j: -abs(j - i)))
            bits[far[:free]] = -1
            found, real = (each(np.array([i]), bits[None]) for each in (bounds, exact))
            strings = torch.from_numpy(completions(bits, 64, rng).astype(np.uint8))
            at = torch.full((64,), i + 1)
            with torch.no_grad():
                margin = margins(model(strings, at), strings.long(), at)
            assert found.lower[0] <= margin.min()
            assert found.upper[0] >= margin.max()
            assert found.lower[0] < real.lower[0] + 1e-3
            if not free:
                widths.append(found.upper[0] - found.lower[0])
    assert 1e-6 < min(widths) < 0.1


def test_proofs_say_what_they_came_to() -> None:
    assert "the rest open" in Proof("open", share_closed=0.5).sentence()
    assert "no bounds" in Proof("no bounds").sentence()
    assert "wrong in real" in Proof("refuted", found_at="bits 1, index 1").sentence()


@pytest.mark.parametrize("name", ["proof.json", "weights.safetensors", "proof.part.safetensors"])
@pytest.mark.parametrize("kind", ["a FIFO", "a device"])
def test_what_is_no_file_is_not_waited_for(name, kind, tmp_path) -> None:
    folder = copy(folders("rhi_n16_softmax-full_*_s0-*")[0], tmp_path)
    run, weights = read(folder)
    (folder / name).unlink(missing_ok=True)
    if kind == "a FIFO":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    said: list[str] = []
    if name == "weights.safetensors":
        with pytest.raises(CannotReadError, match="not a regular file"):
            ithbit.check_certificate(folder / "proof.json")
    elif name == "proof.json":
        assert confirm_certificate(run, weights, folder / name, say=said.append) is None
        assert "proof.json cannot be read and does not count: not a regular file" in said[0]
    else:
        with pytest.raises(CertificateError, match=r"damaged: .*not a regular file"):
            read_part(folder / name, "", run.model.n_bits)


def test_weights_of_another_run_are_not_taken_for_those_of_this(tmp_path) -> None:
    """Seeds share all shapes, and so do lengths: only the file says whose weights these are."""
    folder, other = (folders(f"rhi_n16_softmax-full_*_s{seed}-*")[0] for seed in (0, 1))
    folder, weights = copy(folder, tmp_path), read(other)[1]
    (folder / "weights.safetensors").write_bytes(weights)
    for action in (ithbit.verify, ithbit.load):
        with pytest.raises(StoreError, match=f"the weights of another run, '{other.name[-12:]}'"):
            action(folder, store=tmp_path)
    content = json.loads((other / "proof.json").read_text())
    content |= {name: getattr(read(folder)[0], name) for name in ("name", "run_id")}
    content["spec"] = read(folder)[0].to_json()
    write(folder / "proof.json", content | {"digest": digest(content)})
    with pytest.raises(CertificateError, match=f"those of another run, '{other.name[-12:]}'"):
        ithbit.check_certificate(folder / "proof.json")
