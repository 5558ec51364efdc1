"""Forged certificates: each kind is refused with one sentence, whatever digests were made to fit.

The subjects are wrong on half of their inputs wherever that is possible, so that to accept one of
these would be to call a wrong model right.
"""

import hashlib
import json
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

import ithbit
from ithbit.cli import main
from ithbit.spec import ModelSpec, RunSpec
from ithbit.store.records import SECOND
from ithbit.theory.certificate import certify
from ithbit.theory.certificate_file import CertificateError, check_certificate, digest
from ithbit.theory.certificate_file import document as construction_document
from ithbit.theory.constructions import construct
from ithbit.verification.checks.one_layer_balls import OneLayer
from ithbit.verification.proofs import leaf_checks
from ithbit.verification.proofs.branch_and_bound import search
from ithbit.verification.proofs.certificate import (
    Confirmed,
    confirmed_bytes,
    document,
    encoded,
    weights_of,
)
from ithbit.verification.proofs.kinds import bounds_for, kind_of

N = 3
SPECS = {
    "one": ModelSpec("rhi", "softmax-full", N, 1, d_model=8, d_ff=4),
    "two": ModelSpec("lhi", "linear-causal", N, 2, d_model=16, d_ff=16),
}
Json = dict[str, Any]


def run_of(kind: str) -> RunSpec:
    return RunSpec(SPECS[kind], 0)


@cache
def weights_for(kind: str, wrong: bool) -> bytes:
    """Weights of a construction in float32; wrong ones answer 1 always."""
    spec = SPECS[kind]
    sizes = {"width": spec.d_model, "ff": spec.d_ff, "layers": spec.n_layers}
    solution = ithbit.construct(spec.task, spec.family, N, model="trained", **sizes)
    params = {name: np.float32(value) for name, value in solution.weights.items()}
    if wrong:
        params["head.bias"] = params["head.bias"] + np.float32(100)
    return save(params)


@cache
def honest(kind: str) -> str:
    """The certificate of the right weights, as text."""
    run, weights = run_of(kind), weights_for(kind, False)
    bounds = bounds_for(run.model, weights_of(weights))
    found = search(bounds, seconds=20)
    assert found.outcome == "proved"
    return json.dumps(document(run, weights, found.leaves, bounds.functionals))


def false(kind: str) -> Json:
    """A certificate of the wrong weights: all that is stated follows, except for the bounds."""
    rows = [[i + 1, "*" * i + bit + "*" * (N - i - 1), 0.5] for i in range(N) for bit in ("0", "1")]
    sha = hashlib.sha256(weights_for(kind, True)).hexdigest()
    content = json.loads(honest(kind)) | {"leaves": rows, "margin": 0.5, "weights_sha256": sha}
    content.pop("functionals", None)
    return content


def sealed(content: Json) -> bytes:
    return encoded(content | {"digest": digest(content)})


def refused(data: bytes, weights: bytes) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(CertificateError) as caught:
        confirmed_bytes(data, weights, None)
    return sentence(caught.value)


def sentence(error: Exception) -> str:
    said = str(error)
    assert 8 < len(said) < 700
    assert not any(unicodedata.category(each).startswith("C") for each in said), repr(said)
    return said


def test_honest_ones_hold() -> None:
    """Without which the rest would show nothing; and the wrong weights are wrong."""
    for kind in ("one", "two"):
        data = encoded(json.loads(honest(kind)))
        found = confirmed_bytes(data, weights_for(kind, False), run_of(kind))
        assert found.checked == SECOND
        assert found.margin > 0
        said = refused(sealed(false(kind)), weights_for(kind, True))
        assert "is stated to have a margin of at least 0.5, but the weights give" in said


def test_two_layers_are_not_called_proved_by_the_bounds_of_the_search(monkeypatch) -> None:
    monkeypatch.setattr(leaf_checks, "confirm_leaf", lambda *_: -np.inf)
    found = confirmed_bytes(
        encoded(json.loads(honest("two"))), weights_for("two", False), run_of("two")
    )
    assert "is bounded (unchecked by a second implementation)" in found.sentence()
    for word in ("proved", "right", "proof"):
        assert word not in found.sentence()
    assert found.to_json()["verdict"] == "bounded (unchecked)"
    assert "right on all 24 inputs" in Confirmed("x", 24, 1.0, 2, SECOND).sentence()


def leaf(at: int, **changes: Any) -> Callable[[Json], None]:
    """Change entries of one leaf: index, text, bound, limits."""

    def change(content: Json) -> None:
        row = content["leaves"][at]
        for name, value in changes.items():
            k = ("index", "text", "bound", "limits").index(name)
            row[k : k + 1] = [value]

    return change


def leaves(value: Any) -> Callable[[Json], None]:
    def change(content: Json) -> None:
        content["leaves"] = value(content["leaves"]) if callable(value) else value

    return change


def field(**values: Any) -> Callable[[Json], None]:
    return lambda content: content.update(values)


def without(name: str) -> Callable[[Json], None]:
    return lambda content: content.pop(name)


def spec(renamed: bool = True, **values: Any) -> Callable[[Json], None]:
    """Another model in the specification; with the id and name that follow, if there are any."""

    def change(content: Json) -> None:
        content["spec"]["model"].update(values)
        if renamed:
            run = RunSpec(replace(SPECS["one"], **values), 0)
            n = run.model.n_bits
            content.update(spec=run.to_json(), run_id=run.run_id, name=run.name, n=n)
            content["inputs"] = n << n

    return change


# Each is made of a false certificate of one layer, and sealed with a digest that fits.
FORGED: dict[str, Callable[[Json], Any]] = {
    "a leaf left out": leaves(lambda rows: rows[1:]),
    "all leaves of an index left out": leaves(lambda rows: rows[2:]),
    "no leaves": leaves([]),
    "leaves are an object": leaves({"0": [1, "1**", 0.5]}),
    "leaves are text": leaves("1**"),
    "leaves are missing": without("leaves"),
    "a leaf is an object": leaves(lambda rows: [{"index": 1}, *rows]),
    "a leaf is null": leaves(lambda rows: [None, *rows]),
    "a leaf of two entries": leaves(lambda rows: [rows[0][:2], *rows[1:]]),
    "a leaf of five entries": leaves(lambda rows: [[*rows[0], [], 1], *rows[1:]]),
    "a leaf in the place of another": leaves(lambda rows: [rows[1], *rows[1:]]),
    "index 0": leaf(0, index=0),
    "index beyond n": leaf(0, index=N + 1),
    "index below 0": leaf(0, index=-1),
    "index true": leaf(0, index=True),
    "index 1.0": leaf(0, index=1.0),
    "index as text": leaf(0, index="1"),
    "index too large": leaf(0, index=10**30),
    "the bit at the index free": leaf(0, text="***"),
    "the answer turned": leaf(0, text="1**"),
    "a string too short": leaf(0, text="0*"),
    "a string too long": leaf(0, text="0***"),
    "a string as a list": leaf(0, text=["0", "*", "*"]),
    "a string as bytes of numbers": leaf(0, text=[0, -1, -1]),
    "a wide digit": leaf(0, text="\uff10**"),
    "an Arabic digit": leaf(0, text="\u0660**"),
    "another letter": leaf(0, text="x**"),
    "a character that turns the text": leaf(0, text="0\u202e*"),
    "an escape character": leaf(0, text="0\x1b*"),
    "a zero-width character": leaf(0, text="0*\u200b"),
    "a lone surrogate": leaf(0, text="0*\ud800"),
    "bound 0": leaf(0, bound=0),
    "bound -0.0": leaf(0, bound=-0.0),
    "bound below 0": leaf(0, bound=-3.0),
    "bound true": leaf(0, bound=True),
    "bound as text": leaf(0, bound="0.5"),
    "bound as wide text": leaf(0, bound="\uff11"),
    "bound as a list": leaf(0, bound=[0.5]),
    "bound too large for a float": leaf(0, bound=10**400),
    "bound large": leaf(0, bound=1e308),
    "least of all bounds": lambda content: [
        change(content) for change in (leaf(0, bound=5e-324), field(margin=5e-324))
    ],
    "no bound": leaf(0, bound=None),
    "no bounds at all": leaves(lambda rows: [[*row[:2], None] for row in rows]),
    "limits without functionals": leaf(0, limits=[[0, 0]]),
    "empty limits": leaf(0, limits=[]),
    "functionals of one layer": field(functionals=[[4096, 0, 0]]),
    "another margin": field(margin=0.75),
    "a margin as text": field(margin="0.5"),
    "a margin true": field(margin=True),
    "no margin": without("margin"),
    "other n": field(n=2),
    "n true": field(n=True),
    "n as a float": field(n=float(N)),
    "n as text": field(n="\uff13"),
    "other inputs": field(inputs=25),
    "inputs as a float": field(inputs=float(N << N)),
    "another name": field(name="x\x1b[2J"),
    "another id": field(run_id="0" * 12),
    "another format": field(format="ithbit proof 3"),
    "the first format with what it did not state": field(format="ithbit proof 1"),
    "another kind": lambda content: content.update(
        kind="one-layer" if content["kind"] == "two-layers" else "two-layers"
    ),
    "a kind that there is not": field(kind="gru\x1b[2J"),
    "trust in nothing": field(trusted=[]),
    "more proved": field(proves="it is right for every n"),
    "no claim": without("proves"),
    "another arithmetic": field(arithmetic="exact"),
    "about floats": field(speaks_of="float32"),
    "a further field": field(note="proved for every n"),
    "a further field that escapes": field(**{"\x1b]0;x\x07": 1}),
    "no specification": without("spec"),
    "specification null": field(spec=None),
    "specification as a list": field(spec=[1]),
    "a specification of nothing": field(spec={"model": {}, "seed": 0, "protocol": {}}),
    "another task": spec(False, task="lhi"),
    "another task, renamed": spec(task="lhi"),
    "another family": spec(False, family="softmax-causal"),
    "a linear family, renamed": spec(family="linear-full"),
    "an unknown family": spec(False, family="x\x1b:y"),
    "other heads": spec(False, n_heads=4),
    "other positions, renamed": spec(positions="rotary"),
    "other n, renamed": spec(n_bits=2),
    "two layers, renamed": spec(n_layers=2),
    "three layers, renamed": spec(n_layers=3),
    "a wider model, renamed": spec(d_model=16),
    "a model too wide": spec(False, d_model=10**9),
    "a model too long": spec(False, n_bits=10**12),
    "a model longer than memory": spec(False, n_bits=10**30),
    "n of the model as text": spec(False, n_bits="3"),
    "n of the model true": spec(False, n_bits=True),
    "a further field of the model": spec(False, note=1),
    "another seed": lambda content: content["spec"].update(seed=1),
    "a seed true": lambda content: content["spec"].update(seed=False),
    "another protocol": lambda content: content["spec"]["protocol"].update(batch_size=7),
    "a further part of the specification": lambda content: content["spec"].update(note=1),
    "digest of other weights": field(weights_sha256="0" * 64),
    "no digest of weights": without("weights_sha256"),
}


@pytest.mark.parametrize("layers", ["one", "two"])
@pytest.mark.parametrize("kind", FORGED)
def test_a_false_proof_is_refused(kind: str, layers: str) -> None:
    content = false(layers)
    before = json.dumps(content)
    FORGED[kind](content)
    if layers == "one":
        assert json.dumps(content) != before
    if "leaves" not in content:
        data = json.dumps(content | {"digest": digest(content)}).encode()
    elif isinstance(content["leaves"], list):
        data = sealed(content)
    else:
        data = json.dumps(content | {"digest": digest(content)}).encode()
    refused(data, weights_for(layers, True))


# Of two layers, where leaves may have limits; the functional is the first bit.
ROW = [4096, 0, 0]
BEYOND = [[8192, 12288]]


def limited(limits: Any, functionals: Any = (ROW,), bound: Any = 0.001) -> Callable[[Json], None]:
    def change(content: Json) -> None:
        content["functionals"] = list(functionals)
        content["leaves"] = [[*row[:2], bound, limits] for row in content["leaves"]]
        content["margin"] = bound

    return change


def halves(low: list[int], high: list[int], bound: float | None = 0.001) -> Any:
    """Each case twice: within both limits; the second with another bound."""

    def change(content: Json) -> None:
        content["functionals"] = [ROW]
        rows = [[*row[:2]] for row in content["leaves"]]
        content["leaves"] = [[*row, 0.001, [low]] for row in rows]
        content["leaves"] += [[*row, bound, [high]] for row in rows]
        content["margin"] = 0.001

    return change


LIMITED: dict[str, Callable[[Json], Any]] = {
    "limits that no string reaches": limited(BEYOND),
    "limits that no string reaches, without a bound": limited(BEYOND, bound=None),
    "limits one step beyond": limited([[-4096, 4097]]),
    "limits one step below": limited([[-4097, 4096]]),
    "limits turned round": limited([[4096, -4096]]),
    "limits with no string in them": limited([[-4095, 4095]]),
    "limits as floats": limited([[-4096.0, 4096.0]]),
    "limits true": limited([[False, True]]),
    "limits as text": limited([["-4096", "4096"]]),
    "limits as wide text": limited([["\uff10", "\uff11"]]),
    "limits null": limited([[None, None]]),
    "limits too large": limited([[-(10**30), 10**30]]),
    "limits of another number of functionals": limited([[-4096, 4096], [-4096, 4096]]),
    "limits of three ends": limited([[-4096, 0, 4096]]),
    "limits as an object": limited({"0": [-4096, 4096]}),
    "limits that leave a gap": halves([-4096, -1], [1, 4096]),
    "limits that leave an end": halves([-4096, 0], [0, 4095]),
    "a leaf without a bound that contains inputs": halves([-4096, 0], [0, 4096], None),
    "a leaf without a bound that contains few": halves([-4096, 4095], [4096, 4096], None),
    "functionals as floats": limited([[-4096, 4096]], [[4096.0, 0, 0]]),
    "functionals true": limited([[-1, 1]], [[True, 0, 0]]),
    "functionals too large": limited([[-4097, 4097]], [[4097, 0, 0]]),
    "functionals much too large": limited([[0, 10**40]], [[10**40, 0, 0]]),
    "functionals too short": limited([[-4096, 4096]], [[4096, 0]]),
    "functionals too many": limited([[-1, 1]] * 17, [[1, 0, 0]] * 17),
    "functionals as text": limited([[-4096, 4096]], ["400"]),
    "a functional of nothing": limited([[0, 0]], [[0, 0, 0]]),
    "limits of all, with a false bound": limited([[-4096, 4096]]),
}


@pytest.mark.parametrize("kind", LIMITED)
def test_false_limits_are_refused(kind: str) -> None:
    content = false("two")
    LIMITED[kind](content)
    refused(sealed(content), weights_for("two", True))


def text_of(content: Json) -> str:
    return sealed(content).decode()


FILES: dict[str, Callable[[str], bytes]] = {
    "NaN": lambda text: text.replace("0.5", "NaN", 1).encode(),
    "Infinity": lambda text: text.replace("0.5", "Infinity", 1).encode(),
    "-Infinity": lambda text: text.replace("0.5", "-Infinity", 1).encode(),
    "a number too large": lambda text: text.replace("0.5", "1e999", 1).encode(),
    "an integer too long": lambda text: text.replace("0.5", "9" * 5000, 1).encode(),
    "a name given twice": lambda text: text.replace("{", '{"margin": 9.5,', 1).encode(),
    "a name of the model twice": lambda text: text.replace(
        '"n_bits"', '"n_bits": 2, "n_bits"', 1
    ).encode(),
    "a mark of the byte order": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "another encoding": lambda text: text.encode("utf-16"),
    "bytes that are no text": lambda text: text.encode() + b"\xff",
    "a null character": lambda text: text.encode() + b"\0",
    "more after the end": lambda text: text.encode() + b"{}",
    "cut off": lambda text: text.encode()[:-9],
    "nothing": lambda text: b"",
    "a list": lambda text: f"[{text}]".encode(),
    "nested too deeply": lambda text: b'{"leaves":' + b"[" * 100_000,
    "nested deeply": lambda text: text.replace(
        '"name"', '"x": ' + "[" * 400 + "]" * 400 + ', "name"', 1
    ).encode(),
    "wide digits": lambda text: text.replace("0.5", "\uff10.\uff15", 1).encode(),
    "no digest": lambda text: text.replace('"digest"', '"digests"', 1).encode(),
    "another digest": lambda text: text.replace('"sha256:', '"sha256:0', 1).encode(),
    "an upper-case digest": lambda text: text.replace('"sha256:', '"SHA256:', 1).encode(),
}


@pytest.mark.parametrize("kind", FILES)
def test_files_that_lie_are_refused(kind: str) -> None:
    text = text_of(false("one"))
    data = FILES[kind](text)
    assert data != text.encode()
    said = refused(data, weights_for("one", True))
    assert "the weights give" not in said  # it is the file that is refused


def changed(**changes: Any) -> Callable[[dict[str, np.ndarray]], bytes]:
    def change(params: dict[str, np.ndarray]) -> bytes:
        for name, value in changes.items():
            name = name.replace("__", ".")
            params[name] = value(params[name]) if name in params else value(None)
        return save({name: value for name, value in params.items() if value is not None})

    return change


WEIGHTS: dict[str, Callable[[dict[str, np.ndarray]], bytes]] = {
    "a further tensor": changed(more=lambda x: np.zeros(1, np.float32)),
    "a tensor missing": changed(embed=lambda x: None),
    "another shape": changed(head__weight=lambda x: x[:, :-1].copy()),
    "turned round": changed(embed=lambda x: np.ascontiguousarray(x.T)),
    "float64": changed(embed=lambda x: x.astype(np.float64)),
    "float16": changed(embed=lambda x: x.astype(np.float16)),
    "integers": changed(head__bias=lambda x: np.zeros(1, np.int32)),
    "NaN": changed(head__bias=lambda x: np.full(1, np.nan, np.float32)),
    "infinity": changed(embed=lambda x: np.full_like(x, np.inf)),
    "large": changed(blocks__0__qkv__bias=lambda x: np.full_like(x, 1e30)),
    "cut off": lambda params: save(params)[:-9],
    "nothing": lambda params: b"",
    "of another model": lambda params: weights_for("two", False),
    "wrong by a bias": changed(head__bias=lambda x: x + np.float32(50)),
    "wrong by a sign": changed(head__weight=lambda x: -x),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_that_do_not_fit_are_refused(kind: str) -> None:
    """With the digest of those weights, in the honest certificate of the right ones."""
    other = WEIGHTS[kind](dict(load(weights_for("one", False))))
    content = json.loads(honest("one"))
    content["weights_sha256"] = hashlib.sha256(other).hexdigest()
    refused(sealed(content), other)


def at(path: str, value: Any) -> Callable[[Json], None]:
    """Set what is at a path of names and numbers."""

    def change(content: Any) -> None:
        *way, last = (int(part) if part.lstrip("-").isdigit() else part for part in path.split("/"))
        for part in way:
            content = content[part]
        content[last] = value(content[last]) if callable(value) else value

    return change


BUILT: dict[str, Callable[[Json], None]] = {
    "a margin raised": at("margin", 2.5),
    "a margin lowered": at("margin", 0.25),
    "a margin true": at("margin", True),
    "a margin of many digits": at("margin", 10**4000),
    "a margin as text": at("margin", "1.0"),
    "certified 1": at("certified", 1),
    "n true": at("n", True),
    "n as a float": at("n", 3.0),
    "another n": at("n", 4),
    "depth true": at("depth", True),
    "other inputs": at("inputs", 25),
    "inputs as a float": at("inputs", 24.0),
    "another method": at("method", "boxes"),
    "an unknown method": at("method", "oracle\x1b[2J"),
    "another task": at("task", "rhi"),
    "another family": at("family", "ssm"),
    "of trained blocks": field(model="trained"),
    "about floats": at("speaks_of", "float32"),
    "a further field": field(proved_for="every n"),
    "a theorem that escapes": at("theorem", "Theorem\x1b[2J"),
    "a theorem as a list": at("theorem", ["Theorem 14a"]),
    "a variant of two lines": at("variant", "scalar\nholds"),
    "a family as a long number": at("family", 10**400),
    "a weight turned": at("weights/output/0/0", lambda x: -x - 3),
    "a weight as text": at("weights/output/0/0", str),
    "a weight as wide text": at("weights/output/0/0", "\uff11"),
    "a weight true": at("weights/output/0/0", True),
    "a weight null": at("weights/output/0/0", None),
    "a weight too large": at("weights/output/0/0", 10**400),
    "a weight between floats": at("weights/output/0/0", 2**53 + 1),
    "a further weight": lambda content: content["weights"]["layers"][0].update(more=[1.0]),
    "the worst index true": at("worst/index", True),
    "a worst string of wide digits": at("worst/bits", "\uff10\uff11\uff10"),
    "a worst margin true": at("worst/observed_margin", True),
    "no worst input": at("worst", None),
    "no weights": without("weights"),
}


@cache
def built() -> str:
    return json.dumps(construction_document(certify(construct("lhi", "rnn", N))))


@pytest.mark.parametrize("kind", BUILT)
def test_a_false_certificate_of_a_construction_is_refused(kind: str, tmp_path: Path) -> None:
    content = json.loads(built())
    BUILT[kind](content)
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(content | {"digest": digest(content)}))
    with pytest.raises(CertificateError) as caught:
        check_certificate(path)
    sentence(caught.value)
    assert caught.value.exit_status == 1


@pytest.mark.parametrize("kind", FILES)
def test_such_files_of_constructions_are_refused_too(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(built())
    assert check_certificate(path).certified
    text = built().replace("[0.0,", "[0.5,").replace('"n":', '"n_bits": 1, "n":')
    text = text.replace('"task"', '"name": 0.5, "task"')
    path.write_bytes(FILES[kind](text))
    with pytest.raises(CertificateError) as caught:
        check_certificate(path)
    sentence(caught.value)


def status(monkeypatch: pytest.MonkeyPatch, file: Path) -> int:
    """The exit status of the command line; 0 if it ends by itself."""
    monkeypatch.setattr(sys, "argv", ["ithbit", "check-certificate", str(file)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_the_exit_status_tells_false_from_missing(tmp_path, monkeypatch, capsys) -> None:
    proof, weights = tmp_path / "proof.json", tmp_path / "weights.safetensors"
    proof.write_bytes(sealed(false("one")))
    assert status(monkeypatch, proof) == 2  # no weights
    assert "needs its weights next to it" in capsys.readouterr().err
    weights.write_bytes(weights_for("one", True))
    assert status(monkeypatch, proof) == 1
    assert "is refused: a leaf of index 1 is stated" in capsys.readouterr().err
    proof.write_bytes(b"\xff")
    assert status(monkeypatch, proof) == 1
    weights.write_bytes(weights_for("one", False))
    proof.write_bytes(honest("one").encode())
    assert status(monkeypatch, proof) == 0
    assert capsys.readouterr().out.startswith("holds: rhi_n3_softmax-full")
    weights.write_bytes(weights_for("two", False))
    proof.write_bytes(honest("two").encode())
    assert status(monkeypatch, proof) == 0
    assert capsys.readouterr().out.startswith("holds: lhi_n3_linear-causal")
    monkeypatch.setattr(leaf_checks, "confirm_leaf", lambda *_: -np.inf)
    assert status(monkeypatch, proof) == 0
    said = capsys.readouterr().out
    assert "bounded (unchecked by a second implementation)" in said
    assert "holds" not in said
    for missing in (tmp_path / "none.json", tmp_path, tmp_path / "loop"):
        if missing.name == "loop":
            missing.symlink_to(missing)
        assert status(monkeypatch, missing) == 2
        assert capsys.readouterr().err.startswith("ithbit: cannot read ")
    changed = json.loads(built()) | {"margin": 2.5}
    proof.write_text(json.dumps(changed | {"digest": digest(changed)}))
    assert status(monkeypatch, proof) == 1


def test_there_are_fifty_kinds_at_least() -> None:
    assert len(FORGED) + len(LIMITED) + len(FILES) + len(WEIGHTS) + len(BUILT) >= 50


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("lhi", "gru", 256, 3000, d_model=1),
        ModelSpec("rhi", "softmax-full", 256, 2, d_model=2, n_heads=1, d_ff=20_000),
        ModelSpec("rhi", "softmax-full", 8, 1, d_model=2, n_heads=1, d_ff=20_000),
    ],
)
def test_small_weights_that_need_much_memory_have_no_bounds(spec) -> None:
    """A file of a megabyte would take gigabytes to check."""
    assert kind_of(spec) is None
    assert kind_of(replace(spec, n_layers=min(spec.n_layers, 2), d_ff=64)) is not None


@pytest.mark.parametrize(("n", "width"), [(256, 64), (256, 17), (130, 64)])
def test_long_and_wide_mamba2_has_no_bounds(n: int, width: int) -> None:
    """Small weights again: one leaf of the first took 6.8 GB."""
    assert kind_of(ModelSpec("lhi", "mamba2", n, 2, d_model=width, n_heads=1)) is None
    assert kind_of(ModelSpec("lhi", "mamba2", n, 2, d_model=16)) is not None
    assert kind_of(ModelSpec("lhi", "mamba2", 100, 2, d_model=width, n_heads=1)) is not None


def test_no_memory_is_a_sentence(monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(OneLayer, "lower", full)
    assert "memory" in refused(honest("one").encode(), weights_for("one", False))


def test_more_layers_than_weights_are_refused_at_once(tmp_path) -> None:
    """Their names alone would fill the memory."""
    content = construction_document(certify(ithbit.construct("lhi", "gru", 3, model="trained")))
    content["spec"]["n_layers"] = 100_000
    path = tmp_path / "deep.json"
    path.write_text(json.dumps(content | {"digest": digest(content)}))
    with pytest.raises(CertificateError, match="100,000 layers, but"):
        check_certificate(path)


@pytest.mark.parametrize("n", [14_268, 10**9, 10**30])
def test_a_longer_n_than_any_certificate_has_is_refused_at_once(n: int, tmp_path: Path) -> None:
    """The weights of trained blocks are as few for every n, but the arguments take n steps."""
    content = construction_document(certify(ithbit.construct("lhi", "gru", 3, model="trained")))
    content["n"] = content["spec"]["n_bits"] = n
    path = tmp_path / "long.json"
    path.write_text(json.dumps(content | {"digest": digest(content)}))
    with pytest.raises(CertificateError, match="its n is more than 14,267"):
        check_certificate(path)


@pytest.mark.filterwarnings("error")
def test_a_worst_input_that_overflows_gives_no_warning(tmp_path: Path) -> None:
    content = construction_document(certify(construct("lhi", "linear-full", 1)))
    content["weights"]["embedding"]["end"] = [1e308]
    path = tmp_path / "large.json"
    path.write_text(json.dumps(content | {"digest": digest(content)}))
    with pytest.raises(CertificateError) as caught:
        check_certificate(path)
    sentence(caught.value)
