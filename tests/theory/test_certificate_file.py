"""Certificate files carry all that is needed, and every change to them is refused with why."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ithbit.errors import OutputError, SpecError
from ithbit.theory.certificate import LONGEST, certify
from ithbit.theory.certificate_file import (
    CertificateError,
    check_certificate,
    digest,
    document,
    solution_from_json,
    weights_to_json,
    write_certificate,
)
from ithbit.theory.constructions import CONSTRUCTIONS, FREE_GRU, construct
from ithbit.theory.layers import matrix

ENTRIES = [
    (entry.task, entry.family, variant)
    for entry in CONSTRUCTIONS + FREE_GRU
    for variant in entry.variants
]


@pytest.mark.parametrize(("task", "family", "variant"), ENTRIES)
def test_a_file_verifies_and_gives_back_the_same_claim(task, family, variant, tmp_path):
    certificate = certify(construct(task, family, 6, variant))
    path = tmp_path / "certificate.json"
    write_certificate(certificate, path)
    assert check_certificate(path).summary() == certificate.summary()
    assert [item.name for item in tmp_path.iterdir()] == ["certificate.json"]
    content = json.loads(path.read_text())
    assert {"certified", "margin", "inputs", "arithmetic", "depth", "width"} <= set(content)
    assert content["speaks_of"] == "real arithmetic on the stored weights"


def test_weights_survive_json_without_loss():
    for task, family, variant in ENTRIES:
        solution = construct(task, family, 5, variant)
        content = {
            "task": task,
            "family": family,
            "n": 5,
            "theorem": "",
            "variant": variant,
            "weights": json.loads(json.dumps(weights_to_json(solution))),
        }
        again = solution_from_json(content)
        bits, index = np.array([[1, 0, 1, 1, 0]] * 5), np.arange(1, 6)
        assert (solution.margins(bits, index) == again.margins(bits, index)).all()


def tampered(path: Path, *, resealed: bool, **changes) -> Path:
    """The file with some fields changed by functions; with a fitting digest if `resealed`."""
    content = json.loads(path.read_text())
    for key, change in changes.items():
        content[key] = change(content[key])
    if resealed:
        content["digest"] = digest(content)
    path.write_text(json.dumps(content))
    return path


def with_weight(change):
    def apply(weights):
        change(weights)
        return weights

    return apply


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "certificate.json"
    write_certificate(certify(construct("lhi", "linear-causal", 6)), path)
    return path


@pytest.mark.parametrize("resealed", [True, False])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"margin": lambda m: m * 1.5}, "margin is stated as 1.5, but the weights give 1.0"),
        ({"margin": lambda m: m / 2}, "margin is stated as 0.5, but the weights give 1.0"),
        ({"margin": lambda m: "large"}, "margin must be a number, got 'large'"),
        ({"margin": lambda m: True}, "margin must be a number, got True"),
        ({"n": lambda n: 7}, "the embedding has 6 positions for n = 7"),
        ({"n": lambda n: 6.0}, "n must be a whole number, got 6.0"),
        ({"inputs": lambda x: x + 1}, "inputs is not what follows from the weights: 384"),
        ({"arithmetic": lambda a: "exact integers"}, "arithmetic is not what follows"),
        (
            {"method": lambda m: "boxes"},
            "the margin is stated as 1.0, but the weights give 0.99999",
        ),
        ({"method": lambda m: "oracle"}, "method 'oracle' is unknown"),
        ({"method": lambda m: []}, r"method \[\] is unknown"),
        (
            {"worst": lambda w: w | {"observed_margin": 10**400}},
            "int too large to convert to float",
        ),
        ({"method": lambda m: "fixed states"}, "needs one RNN layer and LHI"),
        ({"depth": lambda d: 1}, "depth is not what follows from the weights: 2"),
        ({"width": lambda w: 4}, "width is not what follows from the weights: 1"),
        ({"certified": lambda c: False}, "certified is not what follows from the weights: True"),
        ({"speaks_of": lambda s: "float32"}, "speaks_of is not what follows"),
        ({"task": lambda t: "rhi"}, "LHI needs an end token and RHI has none"),
        ({"family": lambda f: "linear-full"}, "is not a layer of 'linear-full'"),
        ({"sizes": lambda s: [1, 1]}, "sizes is not what follows"),
        ({"worst": lambda w: w | {"index": 9}}, r"the index must be in 1\.\.6, got 9"),
        ({"worst": lambda w: w | {"bits": "10"}}, "the index must be in|has 2 bits, n is 6"),
        ({"worst": lambda w: w | {"bits": "10x010"}}, "bits must be a non-empty string of 0 and 1"),
        ({"worst": lambda w: w | {"observed_margin": 0.25}}, "the file says 0.25"),
        ({"worst": lambda w: None}, "the worst input is missing"),
        ({"float_execution": lambda f: f | {"kind": "certified"}}, "not marked as 'observed"),
        ({"float_execution": lambda f: "right at every n"}, "not marked as 'observed"),
        (
            {"weights": with_weight(lambda w: w["output"].__setitem__(1, [-1.0]))},
            "the weights give only a margin >= -",
        ),
        (
            {"weights": with_weight(lambda w: w["layers"][0].__setitem__("K", [[-0.5]]))},
            "may be marked|margin",
        ),
        (
            {"weights": with_weight(lambda w: w["embedding"]["bit"].pop())},
            "needs a bit table of shape",
        ),
        ({"weights": with_weight(lambda w: w["layers"][0].pop("V"))}, "field 'V' is missing"),
        (
            {"weights": with_weight(lambda w: w["layers"][0].__setitem__("kind", "lstm"))},
            "unknown kind of layer 'lstm'",
        ),
        (
            {"weights": with_weight(lambda w: w["layers"][0].__setitem__("K", [[1.0], [1, 2]]))},
            "ragged",
        ),
        (
            {"weights": with_weight(lambda w: w["layers"][0].__setitem__("causal", 1))},
            "causal must be true or false",
        ),
        ({"weights": lambda w: [1, 2]}, "do not have the expected layout"),
    ],
)
def test_every_false_statement_is_refused_with_its_reason(file, changes, reason, resealed):
    with pytest.raises(CertificateError, match=f"(?s)is refused: .*({reason})"):
        check_certificate(tampered(file, resealed=resealed, **changes))


def test_a_change_that_leaves_a_true_claim_true_breaks_the_digest(file):
    def harmless(weights):
        weights["layers"][1]["net"]["weights"][1] = [[25.0]]
        return weights

    with pytest.raises(CertificateError, match="digest does not match the contents"):
        check_certificate(tampered(file, resealed=False, weights=harmless))
    assert check_certificate(tampered(file, resealed=True)).certified


def test_rounding_of_another_machine_does_not_refute_a_bound_found_in_floats(tmp_path):
    path = tmp_path / "certificate.json"
    write_certificate(certify(construct("rhi", "softmax-full", 5)), path)
    stated = check_certificate(path).margin
    for off in (-1e-13, 1e-13):
        check_certificate(
            tampered(path, resealed=True, margin=lambda m, off=off: stated * (1 + off))
        )
    with pytest.raises(CertificateError, match="but the weights give"):
        check_certificate(tampered(path, resealed=True, margin=lambda m: stated * (1 + 1e-12)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not a JSON file"),
        ("[1]", "is not a certificate: its format is not"),
        ('{"format": "other"}', "is not a certificate: its format is not"),
        ('{"format": "ithbit certificate 1"}', "the field 'weights' is missing"),
    ],
)
def test_other_files_are_refused(tmp_path, text, reason):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(CertificateError, match=reason):
        check_certificate(path)


def test_files_that_cannot_be_read_or_written_say_so(tmp_path):
    with pytest.raises(CertificateError, match=r"cannot read .*No such file"):
        check_certificate(tmp_path / "none.json")
    with pytest.raises(CertificateError, match="cannot read"):
        check_certificate(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CertificateError, match="is not a JSON file"):
        check_certificate(tmp_path / "binary")
    certificate = certify(construct("lhi", "rnn", 2))
    with pytest.raises(OutputError, match=r"cannot write .*binary is not a folder"):
        write_certificate(certificate, tmp_path / "binary" / "c.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        write_certificate(certificate, tmp_path / "folder")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["binary", "folder"]


def test_a_certificate_makes_its_folder(tmp_path):
    path = tmp_path / "new" / "folder" / "c.json"
    write_certificate(certify(construct("lhi", "rnn", 2)), path)
    assert check_certificate(path).certified


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "c.json"
    write_certificate(certify(construct("lhi", "rnn", 2)), path)
    before = path.read_text()
    write_certificate(certify(construct("lhi", "rnn", 3)), path)
    assert path.read_text() != before
    assert check_certificate(path).solution.n_bits == 3


def test_wrong_weights_have_a_file_but_do_not_verify(tmp_path):
    good = construct("rhi", "softmax-full", 5)
    weak = replace(good.layers[0], Q=matrix([[0, -2], [2, 0]]))
    certificate = certify(replace(good, layers=(weak,)))
    assert document(certificate)["certified"] is False
    write_certificate(certificate, tmp_path / "c.json")
    with pytest.raises(CertificateError, match="the weights give only a margin >= -"):
        check_certificate(tmp_path / "c.json")


def test_numbers_stay_within_what_json_readers_take():
    certificate = certify(construct("lhi", "ssm", LONGEST))
    assert len(str(certificate.summary()["inputs"])) <= 4300
    with pytest.raises(SpecError, match=f"written for n up to {LONGEST}, got n = {LONGEST + 1}"):
        certify(construct("lhi", "ssm", LONGEST + 1)).summary()


def test_a_file_nested_too_deeply_is_no_certificate(tmp_path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(CertificateError, match="is not a JSON file"):
        check_certificate(path)
