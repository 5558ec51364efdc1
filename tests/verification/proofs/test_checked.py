"""Proved means checked: what is stored, printed and read again rests on a second implementation,
finished proofs are never lost, and what lies in files is not believed."""

import hashlib
import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save, save_file
from typer.testing import CliRunner

import ithbit
from ithbit.cli import app
from ithbit.errors import OutputError, StoreError
from ithbit.spec import ModelSpec
from ithbit.store.folder import keep_verification
from ithbit.store.frame import load_rows
from ithbit.store.reading import read_verification
from ithbit.store.records import BOUNDED, PROVED, SECOND, Proof, VerificationRecord
from ithbit.theory.certificate import certify, is_construction
from ithbit.theory.certificate_file import CertificateError, check_certificate, write_certificate
from ithbit.theory.trained_blocks import shapes
from ithbit.verification.checks.one_layer_balls import OneLayer
from ithbit.verification.proofs import leaf_checks, run_proof
from ithbit.verification.proofs.branch_and_bound import Nodes, SearchResult, read_part, search
from ithbit.verification.proofs.certificate import weights_of
from ithbit.verification.proofs.kinds import bounds_for
from ithbit.verification.proofs.run_proof import prove_run, search_proof
from ithbit.verification.run_verification import verify_run
from ithbit.verification.stored_run import StoredRun, read_stored_run

WEIGHTS_FILE = "weights.safetensors"
ONE, TWO = ("rhi", "softmax-full"), ("lhi", "linear-causal")


def made(store: Path, kind: tuple[str, str] = ONE, wrong: bool = False) -> Path:
    """The folder of a small run with the weights of a construction; wrong ones answer 1 always."""
    ithbit.construct(*kind, 4, model="trained", out=store)
    (folder,) = (path for path in store.iterdir() if path.is_dir())
    if wrong:
        file = folder / "weights.safetensors"
        params = {name: value.copy() for name, value in load(file.read_bytes()).items()}
        params["head.bias"] += np.float32(100)
        file.write_bytes(save(params))
    return folder


def record_of(folder: Path) -> VerificationRecord:
    record = read_verification(str(folder))
    assert record is not None
    return record


def sha_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def untried(folder: Path) -> None:
    """A record of one that tried few inputs and found nothing, whatever the weights are."""
    verify_run(folder, ithbit.engine.device.choose_device("cpu"))
    record = record_of(folder)
    found = replace(
        record.found, verdict="not refuted", exhaustive=False, n_wrong=0, counterexample=None
    )
    stages = [stage | {"wrong": 0} for stage in found.stages or []]
    found = replace(found, worst=replace(found.worst, margin=1.0), stages=stages)
    keep_verification(folder, replace(record, found=replace(found, wrong_by_index={})))


def verify(folder: Path, **options) -> ithbit.api.trained.Verifications:
    return ithbit.verify(folder, prove=True, device="cpu", store=folder.parent, **options)


def test_a_proof_is_stored_with_its_check(tmp_path) -> None:
    folder = made(tmp_path)
    assert verify(folder)[0].verdict == PROVED
    proof = record_of(folder).found.proof
    assert proof is not None
    sha = hashlib.sha256((folder / "proof.json").read_bytes()).hexdigest()
    assert (proof.outcome, proof.checked, proof.certificate_sha256) == ("proved", SECOND, sha)


def test_two_layers_are_proved(tmp_path) -> None:
    folder = made(tmp_path, TWO)
    untried(folder)
    record = prove_run(read_stored_run(folder), record_of(folder))
    keep_verification(folder, record)
    assert (record.found.verdict, record_of(folder).found.verdict) == (PROVED, PROVED)
    content = json.loads((folder / "proof.json").read_text())
    assert (content["format"], content["kind"]) == ("ithbit proof 2", "two-layers")
    assert any("two_layers_balls.py" in each for each in content["trusted"])


def test_what_the_second_code_does_not_confirm_is_not_stored_as_proved(
    tmp_path, monkeypatch
) -> None:
    """Two layers are then bounded, by the bounds of the search alone."""
    monkeypatch.setattr(leaf_checks, "confirm_leaf", lambda *_: -np.inf)
    folder = made(tmp_path, TWO)
    untried(folder)
    record = prove_run(read_stored_run(folder), record_of(folder))
    keep_verification(folder, record)
    assert record.found.verdict == BOUNDED
    assert "proved" not in (folder / "verification.json").read_text()
    assert "by the bounds of the search alone" in record.found.sentence()
    assert load_rows(tmp_path).rows["verification"].to_list() == [BOUNDED]
    # All inputs tried one by one are better evidence than bounds that nobody checked.
    (both,) = verify(folder)
    assert both.verdict == "right on all inputs"
    assert "\n  proof: bounded (unchecked): margin at least" in str(both) or (
        "\n  proof on record: bounded (unchecked): margin at least" in str(both)
    )


def lying(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Bounds that are too high: the search believes them, as it did wrong ones before."""

    class Lying:
        def __init__(self, *arguments) -> None:
            self.real = bounds_for(*arguments)
            for name in ("n", "functionals", "batch", "slack"):
                setattr(self, name, getattr(self.real, name))

        def __call__(self, *arguments):
            found = self.real(*arguments)
            return replace(found, lower=found.lower + by, upper=found.upper + by)

    monkeypatch.setattr(run_proof, "bounds_for", Lying)


def test_what_the_search_proves_wrongly_is_not_called_proved(tmp_path, monkeypatch) -> None:
    folder = made(tmp_path, wrong=True)
    untried(folder)
    lying(monkeypatch, by=200.0)
    record = prove_run(read_stored_run(folder), record_of(folder), seconds=5)
    proof = record.found.proof
    assert proof is not None
    assert (record.found.verdict, proof.outcome, proof.least_margin) == (
        "not refuted",
        "open",
        None,
    )
    assert "is stated to have a margin of at least" in proof.refused
    assert "its certificate does not hold" in proof.sentence()
    assert not (folder / "proof.json").exists()


def test_what_the_search_refutes_wrongly_is_not_called_refuted(tmp_path, monkeypatch) -> None:
    folder = made(tmp_path)
    untried(folder)
    lying(monkeypatch, by=-200.0)
    record = prove_run(read_stored_run(folder), record_of(folder), seconds=5)
    assert record.found.proof is not None
    assert (record.found.verdict, record.found.proof.outcome) == ("not refuted", "open")


def test_a_wrong_input_is_wrong_in_balls_too(tmp_path) -> None:
    for wrong in (False, True):
        stored = read_stored_run(made(tmp_path / str(wrong), wrong=wrong))
        run, weights = stored.spec, stored.weights
        model = OneLayer(run.model, weights_of(weights))
        assert model.is_wrong(1, [1, 0, 1, 1]) == wrong
        assert not model.is_wrong(1, [1, 1, 1, 1])
        assert not model.is_wrong(1, [-1, -1, -1, -1]) or wrong


def test_records_without_a_check_are_read_as_bounded(tmp_path) -> None:
    """Those written before the check was recorded, and those whose certificate is not there."""
    folder = made(tmp_path)
    untried(folder)
    keep_verification(folder, prove_run(read_stored_run(folder), record_of(folder)))
    file, proof = folder / "verification.json", folder / "proof.json"
    written, certificate = json.loads(file.read_text()), proof.read_bytes()
    assert record_of(folder).found.verdict == PROVED
    old = {k: v for k, v in written["proof"].items() if k not in ("checked", "certificate_sha256")}
    bounded = written["proof"] | {"outcome": "bounded"}
    for kept in (old, written["proof"] | {"checked": "me"}, old | {"checked": SECOND}, bounded):
        file.write_text(json.dumps(written | {"proof": kept}))
        assert record_of(folder).found.verdict == BOUNDED
    assert load_rows(tmp_path).rows["verification"].to_list() == [BOUNDED]
    file.write_text(json.dumps(written))
    assert record_of(folder).found.verdict == PROVED
    proof.write_bytes(certificate + b"\n")
    assert record_of(folder).found.verdict == BOUNDED
    proof.unlink()
    assert record_of(folder).found.verdict == BOUNDED
    proof.write_bytes(certificate)
    # An old record is checked when a proof is asked for, without another search.
    file.write_text(json.dumps(written | {"proof": old}))
    (again,) = verify(folder)
    assert again.verdict == PROVED
    assert record_of(folder).found.proof == Proof(**written["proof"])


def test_exports_without_a_check_are_read_as_bounded(tmp_path) -> None:
    folder = made(tmp_path / "store")
    verify(folder)
    for kept in (True, False):
        out = tmp_path / str(kept)
        ithbit.export(tmp_path / "store", out=out, output_format="csv")
        if not kept:
            frame = load_rows(out).rows.drop("certificate_sha256")
            frame.write_csv(out / "runs.csv")
        assert load_rows(out).rows["verification"].to_list() == [PROVED if kept else BOUNDED]


def test_a_record_of_another_run_or_weights_is_kept_too(tmp_path) -> None:
    """One byte is enough to make it so."""
    folder = made(tmp_path)
    verify(folder)
    file = folder / "verification.json"
    written = json.loads(file.read_text())
    for name, why in (("run_id", "another run"), ("weights_sha256", "about other weights")):
        file.write_text(json.dumps(written | {name: "0" + written[name][:-1]}))
        found = verify(folder)
        assert found[0].verdict == PROVED
        assert why in found.notes[0]
    assert len(list(folder.glob("verification.damaged*.json"))) == 2


@pytest.mark.parametrize("options", [{}, {"seconds": 1e-9}])
def test_a_finished_proof_survives_a_damaged_record(tmp_path, options) -> None:
    """Which is reported and kept; the verdict is that of the certificate, checked again."""
    folder = made(tmp_path)
    verify(folder)
    file, proof = folder / "verification.json", (folder / "proof.json").read_bytes()
    damaged = file.read_bytes().replace(b'"schema"', b'"sc\xffema"')
    file.write_bytes(damaged)
    found = verify(folder, **options)
    assert found[0].verdict == record_of(folder).found.verdict == PROVED
    assert (folder / "proof.json").read_bytes() == proof
    assert (folder / "verification.damaged.json").read_bytes() == damaged
    (note,) = found.notes
    assert "verification.json is not valid JSON" in note
    assert note.endswith("it is kept as verification.damaged.json")
    file.write_bytes(damaged[:100])  # a second one has another name, and no --prove is needed
    said = CliRunner().invoke(
        app, ["verify", str(folder), "--store", str(tmp_path), "--device", "cpu"]
    )
    assert "it is kept as verification.damaged2.json" in said.stderr
    assert record_of(folder).found.verdict == PROVED


def test_a_proof_is_not_removed_before_another_stands(tmp_path) -> None:
    """A search that runs out of time leaves the file alone, whatever it is of."""
    folder = made(tmp_path)
    stored = read_stored_run(folder)
    run, weights = stored.spec, stored.weights
    file = folder / "proof.json"
    file.write_bytes(b"the proof")
    proof, _ = search_proof(run, weights, file, seconds=1e-9)
    assert proof.outcome in ("open", "proved")
    if proof.outcome == "open":
        assert file.read_bytes() == b"the proof"
    proof, _ = search_proof(run, weights, file)
    assert proof.outcome == "proved"
    assert json.loads(file.read_bytes())["margin"] == proof.least_margin


def test_a_certificate_that_stands_is_taken_and_a_false_one_is_said(tmp_path) -> None:
    folder = made(tmp_path)
    verify(folder)
    proof = (folder / "proof.json").read_bytes()
    untried(folder)
    said: list[str] = []
    taken = prove_run(read_stored_run(folder), record_of(folder), seconds=0, say=said.append)
    assert (taken.found.verdict, said) == (PROVED, [])
    other = made(tmp_path / "other", wrong=True)
    untried(other)
    shutil.copy(folder / "proof.json", other)
    refused = prove_run(read_stored_run(other), record_of(other), seconds=0, say=said.append)
    assert refused.found.verdict == "not refuted"
    assert "proof.json does not hold and does not count: it is for other weights" in said[0]
    assert (other / "proof.json").read_bytes() == proof


@pytest.mark.parametrize("other", [{"n_bits": 2}, {"n_heads": 1}, {"family": "softmax-causal"}])
def test_a_proof_of_another_run_with_the_same_weights_does_not_count(tmp_path, other) -> None:
    """Shapes depend neither on n nor on heads: weights may be right at one, and wrong here."""
    folder = made(tmp_path)
    held = folder / "weights.safetensors"
    held.write_bytes(save(load(held.read_bytes())))  # which do not say whose they are
    stored, file = read_stored_run(folder), folder / "proof.json"
    run, weights = stored.spec, stored.weights
    proof, _ = search_proof(replace(run, model=replace(run.model, **other)), weights, file)
    assert proof.verdict == PROVED
    untried(folder)
    before, said = file.read_bytes(), []
    found = prove_run(read_stored_run(folder), record_of(folder), seconds=0, say=said.append)
    assert found.found.verdict == "not refuted"
    assert f"it is about another run than {folder.name}" in said[0]
    assert file.read_bytes() == before


def part_with(folder: Path, **changes) -> Path:
    """The file of an unfinished search, with arrays or numbers changed."""
    stored = read_stored_run(folder)
    run, weights = stored.spec, stored.weights
    bounds = bounds_for(run.model, weights_of(weights))
    found = search(bounds, 60)
    file = folder / "proof.part.safetensors"
    file.write_bytes(
        run_proof.part_of(found, bounds.functionals, hashlib.sha256(weights).hexdigest())
    )
    with safe_open(file, "numpy") as part:
        about = dict(part.metadata())
        arrays = {name: part.get_tensor(name) for name in part.keys()}  # noqa: SIM118
    numbers = json.loads(about["found"])
    for name, value in changes.items():
        if callable(value):
            arrays[name] = np.ascontiguousarray(value(arrays[name]))
        else:
            numbers[name] = value
    save_file(arrays, file, about | {"found": json.dumps(numbers)})
    return file


@pytest.mark.parametrize("kind", [ONE, TWO])
def test_an_unfinished_search_is_not_believed(tmp_path, kind) -> None:
    """A margin below 0 that it states is not what the weights give, nor are its bounds."""
    folder = made(tmp_path, kind)
    part_with(folder, least_found=-1.0, bits="0000", index=1, share_closed=1.0)
    untried(folder)
    said: list[str] = []
    record = prove_run(read_stored_run(folder), record_of(folder), say=said.append)
    assert record.found.proof is not None
    assert record.found.proof.outcome == "proved"
    assert said == []
    wrong = made(tmp_path / "wrong", kind, wrong=True)
    part_with(wrong, least_found=9.0, lower=lambda x: x * 0 + 9, least_proved=9.0)
    untried(wrong)
    assert prove_run(read_stored_run(wrong), record_of(wrong)).found.verdict == "refuted"


DAMAGED = {
    "another shape": {"bits": lambda x: x[:, :-1]},
    "other limits": {"limits": lambda x: np.zeros((len(x), 1, 2))},
    "floats for bits": {"bits": lambda x: x.astype(np.float32)},
    "a number that is no bit": {"bits": lambda x: np.where(x == 1, 2, x)},
    "an index beyond n": {"index": lambda x: x + 1},
    "no axes": {"index": lambda x: np.zeros(())},
    "functionals of another length": {"functionals": lambda x: np.ones((1, 3))},
    "functionals not a number": {"functionals": lambda x: np.full((0, 4), 1.0)[:, :3]},
    "leaves that do not cover": {"bits": lambda x: np.where(x < 0, 0, x)},
    "a free bit at the index": {"bits": lambda x: np.full_like(x, -1)},
    "seconds not a number": {"seconds": "long"},
    "seconds below 0": {"seconds": -1.0},
    "nodes not whole": {"nodes": 1.5},
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_search_is_refused_and_started_afresh(tmp_path, kind) -> None:
    folder = made(tmp_path)
    file = part_with(folder, **DAMAGED[kind])
    stored = read_stored_run(folder)
    run, weights = stored.spec, stored.weights
    with pytest.raises(CertificateError):
        read_part(file, hashlib.sha256(weights).hexdigest(), 4)
    said: list[str] = []
    proof, _ = search_proof(run, weights, folder / "proof.json", say=said.append)
    assert proof.outcome == "proved"
    (sentence,) = said
    assert "proof.part.safetensors is refused, and the search starts afresh: " in sentence


@pytest.mark.parametrize("count", [1, 2])
def test_a_search_with_functionals_is_none_of_one_layer(tmp_path, count) -> None:
    folder = made(tmp_path)
    rows = np.full((count, 4), 0.25)
    part_with(
        folder,
        functionals=lambda x: rows,
        limits=lambda x: np.tile([-1.0, 1.0], (len(x), count, 1)),
    )
    stored, said = read_stored_run(folder), []
    run, weights = stored.spec, stored.weights
    assert read_part(folder / "proof.part.safetensors", sha_of(weights), 4) is not None
    proof, _ = search_proof(run, weights, folder / "proof.json", say=said.append)
    assert proof.outcome == "proved"
    assert "on rhi has no functionals" in said[0]


def test_a_proof_of_weights_that_were_swapped_meanwhile_is_not_stored(tmp_path) -> None:
    folder = made(tmp_path)
    verify(folder)
    untried(folder)
    record = replace(record_of(folder), weights_sha256=sha_of(b"those that were tried"))
    with pytest.raises(StoreError, match="were changed while they were verified"):
        prove_run(read_stored_run(folder), record, seconds=0)


@pytest.mark.parametrize("gone", [False, True])
def test_nor_is_one_of_weights_that_are_no_longer_in_the_folder(tmp_path, gone) -> None:
    """The run was read and tried; then its file was replaced, or deleted."""
    folder = made(tmp_path)
    untried(folder)
    stored, record, file = read_stored_run(folder), record_of(folder), folder / WEIGHTS_FILE
    assert stored.weights_sha256 == record.weights_sha256
    shutil.copy(made(tmp_path / "other", wrong=True) / WEIGHTS_FILE, file)
    if gone:
        file.unlink()
    with pytest.raises(StoreError, match="were changed while they were verified"):
        prove_run(stored, record)
    assert not (folder / "proof.json").exists()


def test_a_proof_on_record_must_be_that_of_the_file_beside_it(tmp_path) -> None:
    """A file of another run, weights or margin, or none at all, whatever its digest is."""
    folder = made(tmp_path)
    verify(folder)
    content, record = json.loads((folder / "proof.json").read_text()), record_of(folder)
    proof = record.found.proof
    assert proof is not None
    others = [content | {name: "0" * 12} for name in ("run_id", "weights_sha256")]
    for each in (*others, content | {"margin": 0.5}, {}, [], None):
        data = json.dumps(each).encode()
        (folder / "proof.json").write_bytes(data)
        stated = replace(proof, certificate_sha256=sha_of(data))
        keep_verification(folder, replace(record, found=replace(record.found, proof=stated)))
        assert record_of(folder).found.verdict == "right on all inputs"
    assert PROVED not in str(ithbit.verify(all_runs=True, device="cpu", store=tmp_path))


@pytest.mark.parametrize("margin", [-5.0, 0.0, None])
def test_a_run_is_not_right_if_its_worst_input_is_wrong(tmp_path, margin) -> None:
    folder = made(tmp_path)
    verify(folder)
    record = json.loads((folder / "verification.json").read_text())
    record["worst"]["margin"] = margin
    (folder / "verification.json").write_text(json.dumps(record))
    assert read_verification(str(folder)) is None


def test_a_run_is_not_right_if_a_proof_on_record_refutes_it(tmp_path) -> None:
    folder = made(tmp_path)
    verify(folder)
    record = json.loads((folder / "verification.json").read_text())
    record["verdict"], record["proof"]["outcome"] = "right on all inputs", "refuted"
    (folder / "verification.json").write_text(json.dumps(record))
    assert read_verification(str(folder)) is None


def test_a_certificate_that_could_not_be_written_is_sought_again(tmp_path, monkeypatch) -> None:
    def full(path: Path, data: bytes) -> Path:
        raise OutputError(f"cannot write {path}: No space left on device")

    folder = made(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run_proof, "write_output", full)
        said = str(verify(folder))
    assert "proof.json could not be written" in said
    assert "can be checked again" not in said
    assert record_of(folder).found.verdict != PROVED
    assert verify(folder)[0].verdict == PROVED
    assert (folder / "proof.json").exists()


@pytest.mark.parametrize("prove", [True, False])
def test_a_refuted_run_keeps_no_proof_that_does_not_hold(tmp_path, prove) -> None:
    folder = made(tmp_path, wrong=True)
    verify(folder)
    record = record_of(folder)
    assert record.found.verdict == "refuted"
    claimed = Proof("proved", least_margin=2.0, leaves=8, checked=SECOND)
    keep_verification(folder, replace(record, found=replace(record.found, proof=claimed)))
    found = ithbit.verify(folder, prove=prove, device="cpu", store=tmp_path)[0]
    assert found.verdict == "refuted"
    assert "margin at least" not in str(found)


def test_what_another_process_found_meanwhile_is_kept(tmp_path, monkeypatch) -> None:
    """It refutes the run while a proof is sought here."""
    folder = made(tmp_path)
    verify(folder)
    wrong = replace(record_of(folder).found.worst, margin=-1.0)

    def meanwhile(stored: StoredRun, record: VerificationRecord, *rest) -> VerificationRecord:
        found = replace(
            record.found,
            verdict="refuted",
            n_wrong=1,
            worst=wrong,
            counterexample=wrong,
            proof=None,
        )
        keep_verification(stored.path, replace(record, found=found))
        return prove_run(stored, record, *rest)

    untried(folder)
    monkeypatch.setattr(run_proof, "prove_run", meanwhile)
    assert verify(folder, again=True)[0].verdict == "unsettled"
    kept = record_of(folder)
    assert kept.found.verdict == "unsettled"
    assert kept.found.proof is not None
    assert kept.found.proof.verdict == PROVED


def test_what_is_on_record_is_said_to_be(tmp_path) -> None:
    """Another device and other seconds than those of now."""
    folder = made(tmp_path)
    verify(folder)
    record = record_of(folder)
    assert record.found.proof is not None
    elsewhere = replace(
        record,
        environment=record.environment | {"device_name": "NVIDIA H200"},
        found=replace(record.found, seconds=77.7, proof=replace(record.found.proof, seconds=88.8)),
    )
    keep_verification(folder, elsewhere)
    for prove in (True, False):
        found = ithbit.verify(folder, prove=prove, device="cpu", store=tmp_path)
        lines = str(found).splitlines()
        assert all(line.startswith("on record: ") for line in lines), lines
        assert "77.7" not in str(found)
        assert "NVIDIA H200" in lines[-1]
    # A proof that is new, of tries that are not.
    keep_verification(
        folder,
        replace(
            elsewhere,
            found=replace(
                elsewhere.found,
                proof=None,
                verdict="right on all inputs",
                method="all inputs",
                exhaustive=True,
            ),
        ),
    )
    lines = str(verify(folder)).splitlines()
    assert lines[0].startswith(f"{folder.name}: proved on all inputs")
    assert "(tries on record)" in lines[0]
    assert "88.8" not in lines[0]
    assert lines[-1].startswith("on record: observed in float32 on NVIDIA H200")


def test_only_the_construction_itself_holds_for_every_n(tmp_path) -> None:
    for solution in (
        ithbit.construct("rhi", "softmax-full", 6, model="trained"),
        ithbit.construct("lhi", "rnn", 6),
    ):
        assert is_construction(solution)
        assert "for every n" in str(certify(solution))
        if hasattr(solution, "weights"):
            weights = dict(solution.weights)
            weights["head.weight"] = weights["head.weight"] * 0.5
            other = replace(solution, weights=weights)
        else:
            other = replace(solution, output=solution.output * 0.5)
        file = tmp_path / "certificate.json"
        write_certificate(certify(other), file)
        text = str(check_certificate(file))
        assert "for every n" not in text
        assert "(not the weights of a construction)" in text


def test_bounds_that_are_none_prove_nothing() -> None:
    """NaN, and a bound above a margin that was met."""
    empty = np.zeros((1, 0, 2))
    leaves = Nodes(np.array([0]), np.array([[1]], np.int8), empty, np.ones(1), np.array([-1]))
    found = SearchResult(leaves, 1.0, 2.0, "1", 1, 1.0, 1, 0.0)
    assert found.outcome == "proved"
    for proved, met in ((np.nan, 2.0), (1.0, np.nan), (3.0, 2.0), (-1.0, 2.0)):
        assert replace(found, least_proved=proved, least_found=met).outcome == "open"


def test_the_check_of_a_long_input_needs_no_table_of_all_pairs() -> None:
    """A table of all pairs took 1.45 GB for a file of 2 MB at n = 1,000."""
    spec = ModelSpec("rhi", "softmax-full", 300)
    params = {name: np.zeros(shape) for name, shape in shapes(spec).items()}
    tracemalloc.start()
    model = OneLayer(spec, params)
    assert [len(row) for row in model.weights(7)] == [3 * 300] * spec.n_heads
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 64 * 300**2  # one ball, for a pair of tokens


@pytest.mark.parametrize(
    ("changes", "of_proof"),
    [
        ({"verdict": "not refuted", "n_wrong": 5}, {}),
        ({"verdict": "no counterexample found", "n_wrong": 5, "stages": None}, {}),  # of 0.1
        ({"verdict": "right on all inputs", "wrong_by_index": {"3": 5}}, {}),
        ({"stages": [{"name": "all inputs", "tried": 64, "wrong": 7, "seconds": 1.0}]}, {}),
        ({"stages": [{"name": "search", "tried": 64, "wrong": 0, "seconds": 1.0}]}, {}),
        ({}, {"refused": "it does not hold"}),
        ({}, {"least_found": -5.0}),
    ],
)
def test_a_record_that_contradicts_itself_does_not_count(tmp_path, changes, of_proof) -> None:
    folder = made(tmp_path)
    assert verify(folder)[0].verdict == PROVED
    file = folder / "verification.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | changes | {"proof": record["proof"] | of_proof}))
    assert read_verification(str(folder)) is None
    file.write_text(json.dumps(record))
    assert record_of(folder).found.verdict == PROVED
