"""Arguments of a wrong type: one sentence each, and never an error from inside."""

import json

import numpy
import pytest
import torch

import ithbit
from ithbit.errors import IthbitError

WEIGHTS = ithbit.construct("rhi", "softmax-full", n=2)
MODEL = ithbit.ModelSpec("rhi", "gru", n_bits=4)
WRONG_PROTOCOL = "protocol must be a Protocol, as in ithbit.Protocol"


@pytest.mark.parametrize(
    ("name", "given", "options", "sentence"),
    [
        ("train", ("rhi", "gru"), {"protocol": {"max_epochs": 1}}, WRONG_PROTOCOL),
        ("probe", (torch.nn.Identity,), {"protocol": {}}, WRONG_PROTOCOL),
        ("capacity", ("rhi", "gru"), {"protocol": {"max_epochs": 1}}, WRONG_PROTOCOL),
        ("train", ("rhi", "gru"), {"workers": "2"}, "workers must be a whole number, got '2'"),
        ("train", ("rhi", "gru"), {"store": None}, "store must be a path, got None"),
        ("train", ("rhi", "gru"), {"device": torch.device("cpu")}, "unknown device device"),
        (
            "train",
            ("rhi", torch.nn.Linear(16, 16)),
            {},
            "got an instance of Linear; give the class",
        ),
        ("sweep", ({"task": ["rhi"]},), {}, "a sweep is the name .*, got 'task' in a dict"),
        ("sweep", (["smoke"],), {}, "a sweep is the name .*, got 'smoke' in a list"),
        ("sweep", (MODEL,), {}, "a sweep is the name .*, got ModelSpec"),
        ("sweep", (None,), {}, "a sweep is the name .*, got None"),
        ("sweep", ("smoke",), {"n": "4"}, "n must be a whole number, got '4'"),
        ("status", ({"task": "rhi"},), {"store": "."}, "a sweep is the name .*, got 'task'"),
        ("verify", ("a",), {"budget": 1e6}, "budget must be a whole number, got 1000000.0"),
        ("verify", ("a",), {"seconds": "9"}, "seconds must be a number, got '9'"),
        ("verify", ("a",), {"seed": "9"}, "seed must be a whole number, got '9'"),
        ("certify", (MODEL,), {}, "the weights of a construction, got ModelSpec"),
        ("certify", ("rhi", "rnn"), {"n": "4"}, "n must be a whole number, got '4'"),
        ("explain", (MODEL,), {"bits": "1", "index": 1}, "the weights of a construction, got"),
        ("explain", ("rhi", "rnn"), {"bits": 101, "index": 1}, "bits must be a string of 0 and 1"),
        ("explain", ("rhi", "rnn"), {"bits": "1", "index": "1"}, "index must be a whole number"),
        ("check_certificate", (MODEL,), {}, "file must be a path, got ModelSpec"),
        ("bound", ("rhi", 3), {}, "theory is about families by name, got 3; choose one of"),
        ("bound", ("rhi", "rnn"), {"n": "8"}, "n must be a whole number, got '8'"),
        ("complexity", ("softmax-causal",), {"position": 1.5}, "position must be a whole number"),
        ("score", ([0, 1],), {}, "predictions must be a path, got .0, 1."),
        ("data", ("rhi",), {"n": "8"}, "n must be a whole number, got '8'"),
        ("sample", ("rhi",), {"count": "8"}, "count must be a whole number, got '8'"),
        ("probe", (torch.nn.Identity,), {"width": "2"}, "width must be a whole number, got '2'"),
        ("probe", (torch.nn.Identity,), {"n": "8"}, "n must be a whole number, got '8'"),
        ("capacity", ("rhi", "gru"), {"minutes": "5"}, "minutes must be a number, got '5'"),
        ("capacity", ("rhi", "gru"), {"need": "5"}, "need must be a whole number, got '5'"),
        ("report", ([MODEL],), {}, "store must be a path, got .ModelSpec"),
        ("compare", ("results/paper",), {"alpha": "x"}, "alpha must be a number, got 'x'"),
        ("train", ("rhi", "gru"), {"watch": "x"}, "watch must be a function, got 'x'"),
        ("train", ("rhi", "gru"), {"tensorboard": 3}, "tensorboard must be a path, got 3"),
        ("train", ("rhi", "gru"), {"progress": "no"}, "progress must be True or False, got 'no'"),
        ("train", (["rhi"], "gru"), {}, r"task must be a string, got .'rhi'."),
        ("verify", ("a",), {"watch": 3}, "watch must be a function, got 3"),
        ("load", (WEIGHTS,), {"device": 3}, "torch has no device 3 here; use cpu"),
        ("load", (WEIGHTS,), {"device": "tpu"}, "torch has no device 'tpu' here; use cpu"),
        ("certify", ("rhi", "rnn"), {"n": 4, "out": 3}, "out must be a path, got 3"),
        ("certify", (WEIGHTS,), {"method": []}, r"method must be a string, got \[\]"),
        ("construct", ("rhi", "rnn", 4, []), {}, r"variant must be a string, got \[\]"),
        ("bound", (["rhi"], "rnn"), {}, "task must be a string, got .'rhi'."),
        ("bound", ("rhi", "rnn"), {"model": []}, r"model must be a string, got \[\]"),
        ("bound", ("rhi", "rnn"), {"bits": None}, "bits must be a whole number, got None"),
        ("table", (["main"],), {}, "name must be a string, got .'main'."),
        ("data", ("rhi",), {"n": None}, "n must be a whole number, got None"),
        ("data", ("rhi",), {"seeds": []}, "give at least one seed"),
        ("data", ("rhi",), {"seeds": ["x"]}, "a seed must be a whole number, got 'x'"),
        ("data", ("rhi",), {"seeds": [-1]}, "seeds must be 0 or more"),
        ("capacity", ("rhi", "gru"), {"width": 2.5}, "width must be a whole number, got 2.5"),
        ("Protocol", (), {"stop_when_solved": "x"}, "stop_when_solved must be True or False, got"),
        ("ModelSpec", ("rhi", ["gru"], 4), {}, r"family must be text, got \['gru'\]"),
        ("merge", (None,), {}, "source must be a path, got None"),
    ],
)
def test_a_wrong_type_is_a_sentence(name, given, options, sentence, tmp_path, monkeypatch) -> None:
    if name != "compare":  # which reads a store first
        monkeypatch.chdir(tmp_path)
    with pytest.raises(IthbitError, match=sentence):
        getattr(ithbit, name)(*given, **options)
    assert not list(tmp_path.iterdir())


def test_one_run_is_a_sweep_too(tmp_path) -> None:
    run = ithbit.RunSpec(MODEL, seed=0)
    assert list(ithbit.sweep(run, store=tmp_path, dry_run=True, device="cpu").runs) == [run]


def test_numpy_numbers_are_numbers(tmp_path) -> None:
    ithbit.data("rhi", n=numpy.int64(2), seeds=numpy.arange(1), out=tmp_path)
    assert json.loads((tmp_path / "data.json").read_text())["n_bits"] == 2


def test_python_itself_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"train\(\) missing 1 required .* 'family'"):
        ithbit.train("rhi")
    with pytest.raises(TypeError, match=r"train\(\) got an unexpected keyword argument 'bits'"):
        ithbit.train("rhi", "gru", bits=8)
